"""Deciding: facts in, orders out. Pure: no I/O, clock, thread, log or random number."""
