"""Which waiting requests with LoRA adapters run, and which slot each of their adapters has."""
