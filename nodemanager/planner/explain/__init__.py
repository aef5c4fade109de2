"""Why each job, node and node type is as it is. Nothing is decided here."""
