"""The service's history: events, ended jobs, nodes' lives and costs, derived from the manager's publications."""
