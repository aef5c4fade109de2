"""Ensembles on a real instance: their port, their records in the KVS, and the loop that drives a run."""
