"""The faults, by the part of the system that they affect."""
