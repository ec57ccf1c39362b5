"""Runs every test marked `exhaustive` and keeps a dated record of it."""
