"""Arguments of tool calls by their JSON schemas: the types of values, and how they are read."""
