"""Quantized weights: their forms, their files and configs, and what they become in the tree."""
