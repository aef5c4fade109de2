"""A study for people: terminal, HTML page, charts."""
