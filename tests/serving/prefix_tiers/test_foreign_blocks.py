"""Blocks of other devices arrive as they are, over either way."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.serving.prefix_tiers.foreign_blocks import ForeignBlocks


def sharding_of(first, count=1):
    mesh = Mesh(np.array(jax.devices()[first : first + count]), ("x",))
    return NamedSharding(mesh, PartitionSpec("x"))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("works", [True, False])
def test_rows_arrive_as_they_were(count, works, monkeypatch, caplog):
    here, there = sharding_of(0, count), sharding_of(count, count)
    values = [np.full((count, 4), i, np.int32) for i in range(3)]
    own, *others = (
        jax.device_put(value, place.with_memory_kind("pinned_host"))
        for value, place in zip(values, (here, there, there), strict=True)
    )
    put = jax.device_put

    def refuse_foreign(block, sharding):
        if isinstance(block, jax.Array) and block.sharding.device_set != sharding.device_set:
            raise RuntimeError("no such copy")
        return put(block, sharding)

    if not works:
        monkeypatch.setattr(jax, "device_put", refuse_foreign)
    rows = ForeignBlocks()([own, *others], here)
    assert [row.sharding.device_set for row in rows] == [here.device_set] * 3
    for row, value in zip(rows, values, strict=True):
        np.testing.assert_array_equal(np.asarray(row), value)
    assert ("not pinned" in caplog.text) == (not works)
