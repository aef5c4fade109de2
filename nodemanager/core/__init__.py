"""The project's vocabulary: jobs, nodes, slots, facts, orders and reasons as frozen values, and the ports."""
