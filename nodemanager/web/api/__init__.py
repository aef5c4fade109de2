"""The endpoints, and the documents that they answer with."""
