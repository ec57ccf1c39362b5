"""The whole engine on a GPU: run there by scripts/gpu_check.py, each module in its own process."""
