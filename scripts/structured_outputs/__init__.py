"""What grammars cost and save: the measurements of `scripts/structured_outputs_benchmark.py`."""
