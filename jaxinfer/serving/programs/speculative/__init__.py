"""Speculative decoding on the devices: drafts from the tokens of slots, verified as decode rows."""
