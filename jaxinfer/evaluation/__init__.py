"""Held-out questions with known answers, and how often a model answers them rightly."""
