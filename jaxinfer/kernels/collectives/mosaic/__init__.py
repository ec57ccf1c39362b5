"""An all-reduce for GPUs that write into each other's memory, in Pallas Mosaic GPU."""
