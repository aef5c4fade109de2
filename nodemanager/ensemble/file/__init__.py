"""Reading an ``ensemble.yaml``. Start with ``schema``; ``model`` has the values that result."""
