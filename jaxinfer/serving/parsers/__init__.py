"""Parsers of answers: split text into reasoning, content and tool calls, whole or as a stream."""
