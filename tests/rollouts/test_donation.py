"""A mapped update lies in the memory of the engine's old arrays, says the compiled program."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxinfer import ParamsMapping, abstract_params, make_mesh
from jaxinfer.rollouts import conversion
from jaxinfer.rollouts.trees import leaves_by_path
from tests.hlo import aliases
from tests.rollouts import trainers
from tests.serving.small_llm import CONFIG, small_params

STACKED = ParamsMapping.nnx_linear(CONFIG).stacked()


def compiled(mapping, held, num_devices):
    """The program, and the bytes of each of the engine's parameters on a device."""
    wanted = abstract_params(CONFIG, jnp.float32, make_mesh(num_devices))
    leaves = leaves_by_path(held)
    assignments, targets = mapping.assignments(leaves, wanted), conversion.targets_of(wanted)
    program = conversion._program(assignments, targets)
    used = conversion._used(leaves, assignments, targets[0].sharding)
    shards = [like.sharding.shard_shape(like.shape) for like in jax.tree.leaves(wanted)]
    return program.lower(jax.tree.leaves(wanted), used).compile(), [
        4 * math.prod(shard) for shard in shards
    ]


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("held", ["separate", "stacked"])
def test_every_parameter_takes_the_place_of_its_old_array(held, num_devices):
    if held == "separate":
        mapping, tree = ParamsMapping.tunix_qwen3(CONFIG), trainers.tunix(small_params())
    else:
        flax = trainers.flax_layers(small_params())
        mapping, tree = STACKED, trainers.with_stacked_layers(flax, 0)
    program, sizes = compiled(mapping, tree, num_devices)
    assert aliases(program.as_text()) == {i: i for i in range(len(sizes))}
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes == sum(sizes)
    assert memory.temp_size_in_bytes < sum(sizes) / 2  # a few leaves, and no second copy of all
