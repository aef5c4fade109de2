"""What jobs may get: room on existing nodes, booting nodes, and nodes on sale."""
