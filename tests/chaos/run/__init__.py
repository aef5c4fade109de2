"""The parts of one run: its script, its site, its history file, and the invariants that must hold."""
