"""The reports of a study for people: terminal, HTML page, charts."""
