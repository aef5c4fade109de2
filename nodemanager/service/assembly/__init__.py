"""The parts from which the service is put together: the site's policy, its ports, and its actors."""
