"""Llamas in llama.cpp's format, GGUF, as directories that the engine and transformers read."""
