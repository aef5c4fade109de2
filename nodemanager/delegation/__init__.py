"""Jobs of our instance that run in another Flux instance, a peer."""
