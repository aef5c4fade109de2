"""The replay's cloud: how long boots take and what fails, as set or as learned."""
