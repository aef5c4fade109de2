"""Workloads: traces, histories, synthetic ones."""
