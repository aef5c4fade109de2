"""The published gRPC service ``EnsembleOperator``, its client, and what both need to trust each other."""
