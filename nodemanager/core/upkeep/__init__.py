"""Calendar windows, and the site's rules for replacing nodes, as frozen values."""
