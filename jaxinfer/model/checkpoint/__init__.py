"""Finding, reading, writing and converting a model's weight files."""
