"""The HTTP service: the dashboard, the API, the metrics."""
