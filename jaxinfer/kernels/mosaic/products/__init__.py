"""Products with weights: few rows at the memory's speed, up to 256 with what surrounds them."""
