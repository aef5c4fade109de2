"""Providers that have only a number of nodes: the order in which nodes come and leave."""
