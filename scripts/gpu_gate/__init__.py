"""What scripts/gpu_check.py is made of: checks of a GPU in child processes, rows, and a record."""
