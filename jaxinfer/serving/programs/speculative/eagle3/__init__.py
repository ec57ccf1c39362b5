"""EAGLE-3 heads in an engine."""
