"""Quantizes the projections of a model by what they read on given texts."""
