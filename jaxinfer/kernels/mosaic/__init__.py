"""Attention kernels for Hopper GPUs, written in Pallas Mosaic GPU."""

from jaxinfer.kernels.mosaic.same_kernels import compile_same_kernels_once

compile_same_kernels_once()
