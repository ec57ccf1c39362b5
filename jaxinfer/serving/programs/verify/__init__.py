"""Proposed tokens, checked on the devices by sampling in the place of each."""
