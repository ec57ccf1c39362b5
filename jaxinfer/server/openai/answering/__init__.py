"""Plans how an answer is split into reasoning, content and tool calls."""
