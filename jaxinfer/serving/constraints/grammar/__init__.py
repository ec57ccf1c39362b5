"""Guided decoding: grammars that answers follow, compiled once, with a matcher a completion."""
