"""Threads and pools that an engine's parts work in until Python ends."""
