"""Constants that several kernels share."""

import math

LOG2_E = math.log2(math.e)
"""``exp(x) = exp2(x * LOG2_E)``: hardware computes powers of 2."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200; kernels choose their number of blocks by it on every GPU."""

RANK_BLOCK = 64
"""Ranks of adapters, and tokens that have some, which kernels read at once."""
