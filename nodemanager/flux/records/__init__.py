"""The manager's records in Flux's KVS: leases, operators' settings, the money spent."""
