"""What jobs, or the scripts that run after them, say to the node manager through Flux."""
