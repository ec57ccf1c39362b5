"""Tests and measures jaxinfer inside tunix, in an environment of its own."""
