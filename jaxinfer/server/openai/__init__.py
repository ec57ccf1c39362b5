"""The HTTP server: OpenAI's routes on top of one engine."""
