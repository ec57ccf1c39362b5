"""Code that several commands share: how they start and end, prompts, the terminal."""
