"""Code that several commands share: start and end, prompts, the terminal."""
