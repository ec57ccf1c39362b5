"""Telemetry for a server's operator: metrics for Prometheus and an access log."""
