"""Trains the bundled model's EAGLE-3 draft head, and measures how often its drafts are right."""
