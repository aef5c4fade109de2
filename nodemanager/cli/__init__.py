"""The command line, with one function for each verb."""
