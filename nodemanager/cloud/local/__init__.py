"""The adapter for a cloud of local processes, for laptops and tests."""
