"""One run: the event loop, the scheduler, the planner and the baselines, and what the run comes to."""
