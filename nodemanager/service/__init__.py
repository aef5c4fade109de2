"""The running service: connects actors, ports and outputs, and stops them in order."""
