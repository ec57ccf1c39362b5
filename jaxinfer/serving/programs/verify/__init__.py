"""Verifies proposed tokens on the devices, by sampling at the position of each."""
