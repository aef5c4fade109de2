"""The actor that carries out the steps of delegated jobs."""
