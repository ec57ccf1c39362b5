"""What an answer's text is made of: reasoning, content and tool calls, whole or as it streams."""
