"""A local engine's answers for a terminal, a pipe or a file: text, thinking and statistics."""
