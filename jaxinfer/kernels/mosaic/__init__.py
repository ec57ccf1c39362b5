"""Kernels for Hopper GPUs, written in Pallas Mosaic GPU."""

from jaxinfer.kernels.mosaic.quick_compile import compile_quickly

compile_quickly()
