"""Whether a node, and what is known of the whole instance, can be relied on."""
