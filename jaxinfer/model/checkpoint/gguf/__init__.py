"""llama.cpp's files, GGUF: read, checked, and written as model directories."""
