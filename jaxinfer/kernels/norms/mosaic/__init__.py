"""Row-wise kernels for Hopper GPUs, in Pallas Mosaic GPU."""
