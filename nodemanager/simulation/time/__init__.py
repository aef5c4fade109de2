"""Virtual time, and the pump that runs unstarted actors in it."""
