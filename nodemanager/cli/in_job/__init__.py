"""The verbs that jobs, or the scripts that run after them, use."""
