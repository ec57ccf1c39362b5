"""Starts an engine: from its arguments to readiness for the first request."""
