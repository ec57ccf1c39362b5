"""The host's state for the slot of each running sequence: block table, sampling, edits."""
