"""From engine arguments to an engine that is ready for its first request."""
