"""The next step of each node. Read ``next_step`` first."""
