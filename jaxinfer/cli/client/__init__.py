"""Commands as clients of a running OpenAI server: prompts to answer, and a load to measure it."""
