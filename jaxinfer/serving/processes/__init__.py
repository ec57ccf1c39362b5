"""Runs one engine in several processes: starts them, keeps them in step, and ends them together."""
