"""What the adapters share: the port over any libcloud driver, retries, HTTP, names."""
