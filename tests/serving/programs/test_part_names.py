"""Every part of the model bears its name in the programs of a step, where it costs nothing."""

import re

import jax.numpy as jnp
import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.profiling.parts import PARTS, part_of
from jaxinfer.profiling.trace.programs import read_program
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from tests.serving.small_llm import CONFIG

FORWARD = {"embed", "norm", "qkv", "rope_and_write", "attention", "o", "mlp"}


def _lower(key):
    mesh, rules = make_mesh(1), ShardingRules()
    context = StepContext(CONFIG, mesh, rules, Kernels("xla"), block_size=16, dtype="float32")
    params = abstract_params(CONFIG, jnp.float32, mesh, rules)
    return program_of(Programs(context, params, num_blocks=9, num_slots=3), key).lower()


@pytest.fixture(scope="module", params=["prefill", "decode", "sampler"])
def lowered(request):
    keys = {
        "prefill": (PrefillShape(16, 2, 4), FORWARD),
        "decode": (DecodeShape(2, 4), FORWARD),
        "sampler": (SamplerKey(2, "temperature"), {"head", "sample"}),
    }
    key, parts = keys[request.param]
    return _lower(key), parts


def test_every_part_is_named(lowered):
    program, parts = lowered
    names = re.findall(r'loc\("([^"]+)"', program.as_text(debug_info=True))
    assert parts <= {part_of(name) for name in names}


def test_names_are_debug_information_and_change_nothing_else(lowered):
    program, _ = lowered
    words = set(re.findall(r"\w+", program.as_text()))
    assert not words & {"embed", "qkv", "rope_and_write", "mlp"}


def test_names_reach_what_xla_compiles(lowered):
    program, parts = lowered
    _, kernels = read_program(program.compile().as_text())
    found = set(kernels.values())
    # XLA may fuse a part into its neighbour; products and attention stay.
    assert parts & {"qkv", "attention", "o", "mlp", "head", "sample"} <= found


def test_no_name_is_unknown():
    assert {*FORWARD, "head", "sample"} == set(PARTS)
