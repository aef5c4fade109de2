"""Microsoft Azure."""
