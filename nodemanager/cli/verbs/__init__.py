"""The verbs of the command line. Each module has a few that belong together, with their options."""
