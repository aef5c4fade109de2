"""Proof of which instance a node is, by what its provider signs."""
