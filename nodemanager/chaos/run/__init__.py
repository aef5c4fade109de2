"""The parts of one run: its script, its site, its history file, and the rules that must hold."""
