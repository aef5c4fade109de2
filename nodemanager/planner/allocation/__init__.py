"""The jobs that wait, allocated to booting and new nodes by the packing."""
