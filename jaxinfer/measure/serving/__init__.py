"""Measures an OpenAI server from outside, under a load of timed requests."""
