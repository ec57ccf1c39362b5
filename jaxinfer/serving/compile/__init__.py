"""Compiles an engine's programs ahead, in parallel, and keeps them on disk."""
