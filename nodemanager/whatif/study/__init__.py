"""Several runs side by side: variants of a site, the process pool, the comparison."""
