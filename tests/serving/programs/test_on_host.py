"""Programs take arrays from pinned host memory as they are, and leave results there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.serving.programs.kinds.padding import on_host
from jaxinfer.serving.programs.programs import WHOLE
from tests.serving.compile.test_lowering import _programs

_EXTREME = np.array([-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 1], np.int32)


def _run(devices, *, to_host):
    programs = _programs(devices)
    arguments = (programs.on_host(_EXTREME.shape), programs.last_tokens)
    program = programs.sharded(
        "twice",
        lambda values, tokens: (values, tokens + values[3:4]),
        arguments,
        (WHOLE, WHOLE),
        donate=(1,),
        to_host=to_host,
    )
    tokens = jax.device_put(jnp.arange(5, dtype=jnp.int32), programs.last_tokens.sharding)
    return program.jit()(on_host(programs, _EXTREME), tokens)


@pytest.mark.parametrize("devices", [1, 4])
def test_every_value_arrives_as_it_is(devices):
    """A seed has any bits, and so has a negative zero, which is the least of all integers."""
    values, tokens = _run(devices, to_host=())
    for shard in values.addressable_shards:
        np.testing.assert_array_equal(shard.data, _EXTREME)
    assert tokens.tolist() == [0, 1, 2, 3, 4]
    assert {values.sharding.memory_kind, tokens.sharding.memory_kind} == {"device"}


@pytest.mark.parametrize("devices", [1, 4])
def test_results_that_are_asked_for_on_the_host_lie_there(devices):
    values, tokens = _run(devices, to_host=(0,))
    assert values.sharding.memory_kind == "pinned_host"
    assert tokens.sharding.memory_kind == "device"
    np.testing.assert_array_equal(values, _EXTREME)
