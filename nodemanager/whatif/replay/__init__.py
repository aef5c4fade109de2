"""One run: the event loop, the scheduler, the planner, the baselines, and the result."""
