"""How facts change the snapshot. Read ``observe`` first."""
