"""Trains the bundled model's draft heads, and measures how often their drafts are right."""
