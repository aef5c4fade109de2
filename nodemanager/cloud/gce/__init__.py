"""The adapter for Google Compute Engine."""
