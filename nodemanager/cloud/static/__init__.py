"""The adapter for own hosts that commands wake and put to sleep."""
