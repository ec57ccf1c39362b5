"""jaxinfer: a small paged LLM inference engine for Qwen3 in JAX."""
