"""How a node gets in: tickets, the join service, the join client. ``doc/joining.md`` is the protocol."""
