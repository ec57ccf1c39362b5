"""The HTTP edge: OpenAI's routes on top of one engine."""
