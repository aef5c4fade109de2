"""Whether a node, and the facts about the whole instance, can be relied on."""
