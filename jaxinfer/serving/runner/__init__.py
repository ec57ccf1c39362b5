"""Owns the devices: packs a step, launches it and reads its result late."""
