"""Draws the documentation's tables and plots from records, and hooks into its build."""
