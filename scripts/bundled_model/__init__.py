"""Makes the bundled model: its text, its tokenizer, its weights, and the proof that it works."""
