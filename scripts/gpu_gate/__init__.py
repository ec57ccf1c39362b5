"""Parts of scripts/gpu_check.py: checks of a GPU in child processes, their table, and a record."""
