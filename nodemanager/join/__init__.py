"""How a node joins the instance: the join service, its tickets, and the client that nodes run."""
