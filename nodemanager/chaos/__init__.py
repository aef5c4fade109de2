"""Runs the production service in the simulated world, with faults drawn from a seed, and checks invariants."""
