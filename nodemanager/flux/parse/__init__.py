"""Flux's JSON as values: jobspecs, resource sets, constraints, the job manager's journal."""
