"""``provider = minicluster``: the pods of a Flux Operator MiniCluster as nodes."""
