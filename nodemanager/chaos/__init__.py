"""The production service in the simulated world, with faults drawn from a seed, and the rules that must hold."""
