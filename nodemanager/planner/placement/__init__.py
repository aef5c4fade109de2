"""Which job runs on which node, and which nodes to buy for the others. Read ``placement`` first."""
