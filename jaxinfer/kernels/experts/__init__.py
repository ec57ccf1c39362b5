"""Experts: a router's choice, and the products with what it chose."""
