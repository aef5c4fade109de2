"""The adapter for Amazon EC2."""
