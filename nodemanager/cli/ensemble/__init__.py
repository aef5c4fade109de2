"""The verb ``ensemble``: check, run, status, stop and list."""
