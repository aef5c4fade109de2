"""Upkeep: which nodes are replaced, how many at once and when, and what applies at which time of the week."""
