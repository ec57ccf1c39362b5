"""Workloads, floors and timing: how the speed of an engine is measured."""
