"""Records which steps ran, what the host did in them, and a trace of both."""
