"""Jobs that are better run in another Flux instance than on nodes of this one."""
