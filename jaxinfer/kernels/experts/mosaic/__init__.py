"""Experts on Hopper GPUs: routing, and products that read only experts that were chosen."""
