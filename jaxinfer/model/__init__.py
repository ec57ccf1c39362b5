"""Qwen3 parameters and pure forward functions; nothing here knows of scheduling."""
