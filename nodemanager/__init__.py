"""flux-node-manager: cloud nodes for a Flux instance, only while they are worth their price."""
