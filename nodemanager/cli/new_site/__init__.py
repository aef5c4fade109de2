"""``init --provider``: ask an account what it offers, and write a first site file from the answers."""
