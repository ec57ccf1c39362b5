"""Times single kernels on a GPU and compares them with its limits."""
