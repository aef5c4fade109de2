"""The running service: it wires actors, adapters and outputs, and ends them in order."""
