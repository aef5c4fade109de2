"""The HTTP service: the dashboard, the API and the metrics."""
