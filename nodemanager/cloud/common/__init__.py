"""Code that several adapters share: a port over any libcloud driver, retries, HTTP, resource names."""
