"""Rollouts for trainers: arrays of tokens out, trainers' parameters mapped onto the engine's."""
