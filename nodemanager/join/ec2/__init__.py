"""Proof of which EC2 instance a node is."""
