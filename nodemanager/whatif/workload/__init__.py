"""Workloads: traces, job histories, synthetic ones."""
