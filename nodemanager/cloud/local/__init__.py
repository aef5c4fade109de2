"""A cloud of local processes, for laptops and tests."""
