"""The HTTP endpoints and the documents they answer with."""
