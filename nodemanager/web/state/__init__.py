"""The state behind the HTTP service: the board with the latest publication, and the access rules."""
