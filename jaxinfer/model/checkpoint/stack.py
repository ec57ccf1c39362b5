"""Tensors of one shape as one array with a leading axis, without a copy of them together."""

from typing import Any


class Stack:
    """What an array ``[N, ...]`` of N arrays would be; nothing is read before it is copied.

    Args:
        arrays: NumPy arrays of one shape and dtype, such as maps of files.
    """

    def __init__(self, *arrays: Any) -> None:
        self.arrays, self.dtype = arrays, arrays[0].dtype
        self.shape: tuple[int, ...] = (len(arrays), *arrays[0].shape)

    def __getitem__(self, index: tuple[slice, ...]) -> "Stack":
        """A part of it: slices of some of the arrays."""
        first, *rest = index
        return Stack(*(array[tuple(rest)] for array in self.arrays[first]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The copy that NumPy's functions ask for."""
        import numpy as np  # plans of memory import this file, and need none

        return np.stack(self.arrays, dtype=dtype)
