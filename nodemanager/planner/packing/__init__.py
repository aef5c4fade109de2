"""How many nodes of which type hold given pieces at the least cost: counts only, no jobs and no slots."""
