"""For trainers: their parameters in, mapped onto the engine's; rollouts out, as arrays."""
