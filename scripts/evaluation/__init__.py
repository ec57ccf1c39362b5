"""Held-out questions with known answers, and a model's accuracy on them."""
