"""What a launch of a Mosaic kernel asks of the device, read while the kernel is lowered.

Grids and the copy engine's descriptors are made on the host at each launch, so neither lowering nor
compiling fails where one is impossible: the process aborts when the kernel is first run.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from jax.experimental.mosaic.gpu import core, launch_context
from jax.extend.mlir import ir

from jaxinfer.kernels.mosaic import built_for


@dataclasses.dataclass(frozen=True)
class Launches:
    """Of kernels that were lowered.

    Attributes:
        descriptors: the sizes of each array as the copy engine is told of it, after Mosaic has
            merged dimensions.
        grids: blocks along x, y and z.
    """

    descriptors: list[tuple[int, ...]]
    grids: list[tuple[int, ...]]

    def check(self) -> None:
        """Every index fits int32, and CUDA takes the grids."""
        assert self.descriptors
        assert self.grids
        assert max(max(sizes) for sizes in self.descriptors) < 2**31
        for x, y, z in self.grids:
            assert x < 2**31
            assert max(y, z) <= 65_535


@contextlib.contextmanager
def launches_of_what_is_lowered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """What launches of the kernels that are lowered inside will ask for."""
    launches = Launches([], [])
    read, lower = launch_context.memref.extract_strided_metadata, core._lower_as_gpu_kernel

    def note_descriptor(ref: Any) -> Any:
        launches.descriptors.append(tuple(ir.MemRefType(ref.type).shape))
        return read(ref)

    def note_grid(*args: Any, **kwargs: Any) -> Any:
        launches.grids.append(kwargs["grid"])
        return lower(*args, **kwargs)

    built_for._built.cache_clear()  # or nothing is lowered
    with monkeypatch.context() as patch:
        patch.setattr(launch_context.memref, "extract_strided_metadata", note_descriptor)
        patch.setattr(core, "_lower_as_gpu_kernel", note_grid)
        yield launches
