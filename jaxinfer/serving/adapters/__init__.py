"""LoRA adapters of a running engine: which are loaded, and which slot each row's adapter has."""
