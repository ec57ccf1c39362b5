"""Beam search, over calls of an engine."""
