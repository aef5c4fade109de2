"""The history file: an SQLite database with one writer and many readers."""
