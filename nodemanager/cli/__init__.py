"""The command line: one function a verb."""
