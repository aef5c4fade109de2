"""The simulated provider and its faults."""
