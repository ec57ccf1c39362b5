"""Between text and token ids: the tokenizer and the chat template."""
