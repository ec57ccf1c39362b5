"""Text processing for a model: its tokenizer and its chat template."""
