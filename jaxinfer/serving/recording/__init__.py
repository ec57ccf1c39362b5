"""Records an engine's steps, the host's work in them, and a trace of both."""
