"""The ``[Cloud]`` keys of each provider, and what each provider requires."""
