"""The parts of benchmark.py: what is measured besides the workloads, and how results are kept."""
