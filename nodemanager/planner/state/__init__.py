"""What the planner knows: the snapshot, the policy, the lifecycle of a node, and the indexes over them."""
