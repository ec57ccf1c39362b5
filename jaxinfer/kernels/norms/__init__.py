"""RMSNorm and the elementwise operations beside it."""
