"""The HTTP service: an engine behind OpenAI's protocol; the engine imports nothing from it."""
