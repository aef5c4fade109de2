"""The parser of the command line: each verb with its own options and an example."""
