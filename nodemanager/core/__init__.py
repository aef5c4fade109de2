"""The words of the project: jobs, nodes, slots, facts, orders and reasons as frozen values, and the ports."""
