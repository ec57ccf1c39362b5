"""`generate --url` and `chat --url`: commands as clients of a running OpenAI server."""
