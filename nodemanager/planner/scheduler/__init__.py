"""How Flux's scheduler will place jobs on existing nodes."""
