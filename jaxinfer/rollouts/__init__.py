"""Rollouts for trainers: token arrays from the engine, and trainers' parameters into it."""
