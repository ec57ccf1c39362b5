"""Batches reach programs through the same few arrays, each of which is written once it is read."""

import gc

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving.runner.host_inputs import HostInputs

_IN_TURN = 4


class _Reader:
    """A result of a program that notes when it is waited for."""

    def __init__(self, name, waited):
        self._name, self._waited = name, waited

    def block_until_ready(self):
        self._waited.append(self._name)


def _inputs(devices=1):
    mesh = make_mesh(devices)
    return HostInputs(NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host"))


def _packed(number, size=6):
    return np.arange(size, dtype=np.int32) + 100 * number


def _addresses(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


@pytest.mark.parametrize("devices", [1, 4])
def test_every_device_gets_the_values_of_each_batch(devices):
    inputs = _inputs(devices)
    for number in range(8):
        array = inputs.write(_packed(number))
        shards = array.addressable_shards
        assert len(shards) == devices
        for shard in shards:
            np.testing.assert_array_equal(shard.data, _packed(number))


@pytest.mark.parametrize("devices", [1, 4])
def test_addresses_repeat_in_turn(devices):
    inputs = _inputs(devices)
    seen = [_addresses(inputs.write(_packed(number))) for number in range(3 * _IN_TURN)]
    assert seen[_IN_TURN:] == seen[:-_IN_TURN]
    assert len({addresses[0] for addresses in seen}) == _IN_TURN


def test_the_last_batches_stay_as_they_are_while_the_next_is_written():
    inputs = _inputs()
    arrays = [inputs.write(_packed(number)) for number in range(2 + _IN_TURN)][-_IN_TURN:]
    for number, array in enumerate(arrays, 2):
        np.testing.assert_array_equal(array, _packed(number))


def test_sizes_do_not_share_arrays():
    inputs = _inputs()
    small = inputs.write(_packed(1))
    for number in range(2 * _IN_TURN):
        inputs.write(_packed(number, size=7))
    np.testing.assert_array_equal(small, _packed(1))


def test_a_write_waits_for_the_reader_of_the_array_that_it_overwrites_alone():
    inputs, waited = _inputs(), []
    for number in range(_IN_TURN):
        inputs.write(_packed(number))
        inputs.read_by(_Reader(number, waited))
    inputs.write(_packed(0, size=7))
    assert waited == []
    for number in range(_IN_TURN):
        inputs.write(_packed(number))
        inputs.read_by(_Reader(_IN_TURN + number, waited))
        assert waited == [*range(number + 1)]


def test_nothing_is_overwritten_before_its_reader_is_done():
    inputs = _inputs()

    class Reader:
        def block_until_ready(self):
            np.testing.assert_array_equal(first, _packed(0))

    first = inputs.write(_packed(0))
    inputs.read_by(Reader())
    for number in range(1, _IN_TURN + 1):
        inputs.write(_packed(number))
    np.testing.assert_array_equal(first, _packed(_IN_TURN))


def test_a_readers_failure_is_the_writers():
    class Failed:
        def block_until_ready(self):
            raise RuntimeError("the device is lost")

    inputs = _inputs()
    inputs.write(_packed(0))
    inputs.read_by(Failed())
    for number in range(1, _IN_TURN):
        inputs.write(_packed(number))
    with pytest.raises(RuntimeError, match="device is lost"):
        inputs.write(_packed(_IN_TURN))


def test_clearing_forgets_arrays_and_readers():
    inputs, waited = _inputs(), []
    kept = [inputs.write(_packed(number)) for number in range(_IN_TURN)]
    inputs.read_by(_Reader("old", waited))
    inputs.clear()
    inputs.read_by(_Reader("nobody's", waited))
    before = {_addresses(array)[0] for array in kept}
    for number in range(2 * _IN_TURN):
        array = inputs.write(_packed(10 + number))
        assert _addresses(array)[0] not in before
    assert waited == []
    for number, array in enumerate(kept):
        np.testing.assert_array_equal(array, _packed(number))


@pytest.mark.parametrize("size", [6, 1 << 16])
def test_the_callers_own_array_is_never_written(size):
    """JAX may take NumPy's memory for a CPU's without a copy."""
    inputs = _inputs()
    given = [_packed(number, size) for number in range(_IN_TURN)]
    for packed in given:
        inputs.write(packed)
    for number in range(2 * _IN_TURN):
        inputs.write(_packed(10 + number, size))
    for number, packed in enumerate(given):
        np.testing.assert_array_equal(packed, _packed(number, size))


def test_a_program_reads_what_was_written_last():
    inputs = _inputs()
    on_device = jax.memory.Space.Device
    add = jax.jit(lambda array: jax.device_put(array, on_device) + 1)
    results = []
    for number in range(4 * _IN_TURN):
        results.append(add(inputs.write(_packed(number))))
        inputs.read_by(results[-1])
    gc.collect()
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, _packed(number) + 1)
