"""What to do when the limits or the budget do not allow nodes for all jobs."""
