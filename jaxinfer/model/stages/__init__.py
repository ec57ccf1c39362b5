"""Stages of a pipeline: the layers of each, and parameters on their devices."""
