"""Verifies proposed tokens on the devices, by sampling in the place of each."""
