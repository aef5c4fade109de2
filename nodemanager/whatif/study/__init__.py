"""Several runs side by side: variants, the pool of processes, the comparison."""
