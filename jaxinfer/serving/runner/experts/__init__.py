"""Experts that lie in slots of devices by a plan, which may change."""
