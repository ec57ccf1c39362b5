"""Parses arguments of tool calls by their JSON schemas: types, and values written without JSON."""
