"""What quantized weights change: figures of each scheme, checked against a simulation."""
