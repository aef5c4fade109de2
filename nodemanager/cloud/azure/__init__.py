"""The adapter for Microsoft Azure."""
