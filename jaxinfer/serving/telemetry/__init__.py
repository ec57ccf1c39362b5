"""What an operator of a server sees: metrics for Prometheus and an access log."""
