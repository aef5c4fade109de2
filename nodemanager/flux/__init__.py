"""The Flux instance: the real adapter of ``FluxPort``, over flux-core's Python bindings."""
