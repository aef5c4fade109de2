"""Simulated instances between which jobs are delegated, in virtual time."""
