"""Anthropic's Messages API, translated to what chat completions do."""
