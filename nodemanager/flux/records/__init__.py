"""What the manager keeps in Flux's KVS: leases, operators' settings, the money spent."""
