import types

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.errors import CapacityError
from jaxinfer.model.sharding import make_mesh
from jaxinfer.planning.blocks import blocks_on_devices, check_capacity
from jaxinfer.serving.startup import memory

GIB = 2**30


class _Device:
    def __init__(self, limit, in_use):
        self.stats = {"bytes_limit": limit, "bytes_in_use": in_use}

    def memory_stats(self):
        return self.stats


def _blocks(devices, **changes):
    options = {"block_bytes": 2**20, "step_bytes": GIB, "utilization": 0.9} | changes
    free = memory.free_bytes(devices, utilization=options["utilization"])
    return blocks_on_devices(free, **options)


@pytest.fixture(autouse=True)
def _allocator_has_it_all(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "1.0")


def test_blocks_fill_the_share_of_memory_within_a_hundredth():
    blocks = _blocks([_Device(100 * GIB, 10 * GIB)])
    exact = (90 - 10 - 1) * 1024
    assert 0.99 * exact < blocks <= exact


def test_the_fullest_device_decides():
    full = _Device(100 * GIB, 50 * GIB)
    assert _blocks([_Device(100 * GIB, 0), full]) == _blocks([full])


def test_a_little_more_in_use_does_not_change_the_shapes():
    some, more = (_Device(100 * GIB, int(gibibytes * GIB)) for gibibytes in (10.2, 10.3))
    assert _blocks([some]) == _blocks([more])


def test_the_share_is_of_the_whole_memory_not_of_the_allocators(monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.5")
    half = [_Device(50 * GIB, 0)]
    assert _blocks(half, utilization=0.4) == pytest.approx(39 * 1024, rel=0.01)
    # What the allocator may not take is no room, whatever the utilization, and of what it may a
    # little is left to others.
    assert _blocks(half, utilization=0.9) == pytest.approx((0.95 * 50 - 1) * 1024, rel=0.01)


def test_no_room_is_an_error_that_names_the_remedies():
    with pytest.raises(CapacityError, match="raise gpu_memory_utilization"):
        _blocks([_Device(10 * GIB, 9 * GIB)])


def test_a_device_that_reports_nothing_needs_num_kv_blocks():
    device = _Device(0, 0)
    device.stats = None
    with pytest.raises(CapacityError, match="set num_kv_blocks"):
        _blocks([device])


def test_a_cpu_gets_room_for_every_sequence_within_reason(monkeypatch):
    def available(size):
        monkeypatch.setattr(
            memory.psutil, "virtual_memory", lambda: types.SimpleNamespace(available=size)
        )

    def count(**changes):
        options = {"block_bytes": 2**20, "blocks_per_seq": 64, "max_num_seqs": 4}
        return memory.blocks_on_cpu(**(options | changes))

    available(64 * GIB)
    assert count() == 4 * 64 + 1
    assert count(max_num_seqs=1000) == 512 + 1  # half a GiB is enough
    assert count(blocks_per_seq=2000, max_num_seqs=9) == 2000 + 1  # but one sequence must fit
    available(GIB)
    assert count(blocks_per_seq=2000) == 256 + 1  # unless that takes a quarter of the memory


@settings(deadline=None)
@given(st.integers(0, 2**40), st.sampled_from([2**14, 3 * 2**20]), st.sampled_from([8, 16, 256]))
def test_the_longest_sequence_on_a_cpu_fits_and_wastes_little(available, block_bytes, block_size):
    with pytest.MonkeyPatch.context() as patch:
        size = types.SimpleNamespace(available=available)
        patch.setattr(memory.psutil, "virtual_memory", lambda: size)
        longest = memory.longest_on_cpu(block_bytes=block_bytes, block_size=block_size)
        blocks = memory.blocks_on_cpu(
            block_bytes=block_bytes,
            blocks_per_seq=max(longest // block_size, 1),
            max_num_seqs=1,
        )
    assert longest % block_size == 0
    assert longest <= (blocks - 1) * block_size
    most = available // 4 // block_bytes * block_size
    assert longest >= 0.8 * most - 2 * block_size


def test_too_few_blocks_name_the_length_that_fits():
    check_capacity(num_blocks=5, block_size=16, max_model_len=64)
    with pytest.raises(CapacityError, match="max_model_len to at most 64"):
        check_capacity(num_blocks=5, block_size=16, max_model_len=65)


def test_a_device_holds_its_share_of_the_weights():
    mesh = make_mesh(8)
    whole, split = (
        jax.ShapeDtypeStruct((16, 4), jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for spec in (PartitionSpec(), PartitionSpec(mesh.axis_names[0]))
    )
    assert memory.bytes_per_device({"a": whole, "b": {"c": split}}) == 128 + 128 // 8


def test_the_largest_program_counts_and_donated_arguments_do_not():
    def compiled(size):
        x = jax.ShapeDtypeStruct((size,), jnp.float32)

        def step(pages, x):
            return pages + 1, x * 2

        return jax.jit(step, donate_argnums=0).lower(x, x).compile()

    small, large = compiled(1000), compiled(5000)
    assert memory.step_bytes([large, small]) == memory.step_bytes([large])
    # The pages are updated in place; the other result may be alive twice.
    assert 2 * 20_000 <= memory.step_bytes([large]) < 2 * 20_000 + 2_000
