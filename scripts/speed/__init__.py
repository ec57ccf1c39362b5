"""Workloads W1 to W5, their floors, and how an engine's speed in them is measured."""
