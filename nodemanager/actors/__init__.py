"""Acting: the threads and the effects. No policy stands here."""
