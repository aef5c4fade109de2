"""Take facts into the snapshot. Read ``observe`` first."""
