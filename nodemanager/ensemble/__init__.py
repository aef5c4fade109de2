"""Ensembles: workloads that are rules over groups of jobs. Everything here is pure. Start with ``engine``."""
