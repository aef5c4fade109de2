"""Deciding. Pure: no I/O, no clock, no thread, no logging, no randomness. Read ``plan.py`` first."""
