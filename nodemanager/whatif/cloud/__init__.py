"""The replay's cloud: how long boots take and what fails, as configured or as learned."""
