"""Connections to a Flux instance: by flux-core's Python bindings here, or by a process that has them."""
