"""Programs of engines with a draft head: pages in place, on devices split or not, and for GPUs."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.choice import Backend
from jaxinfer.kernels.implementations import import_all
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.draft_head.weights import DRAFT_HEAD, describe_head
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKey
from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.speculative.drafter import DraftTextSizes
from jaxinfer.serving.programs.speculative.heads import HEADS
from jaxinfer.serving.programs.speculative.watched_layers import WatchedLayers
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.startup.memory import bytes_per_device
from tests import hlo
from tests.kernels.h200_target import trace_for_h200
from tests.model import tiny
from tests.model.draft_head.random_head import dflash_config, head_config

CONFIG = tiny.config(
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=128
)


def _wide(head):
    """The head with heads that GPU kernels take."""
    return dataclasses.replace(head, layer=dataclasses.replace(head.layer, head_dim=128))


CONFIGS: dict[str, Any] = {
    "eagle3": _wide(head_config(CONFIG, states=(1, 2, 3))),
    "dflash": _wide(dflash_config(CONFIG, states=(1, 2, 3))),
}
BLOCKS, SLOTS = 1001, 5


def drafter_of(method, backend: Backend = "xla"):
    return HEADS[method].drafter(3, CONFIGS[method], Kernels(backend))


KEYS = [
    PrefillShape(64, 4, 8),
    DecodeShape(4, 8),
    SampledDecodeKey(DecodeShape(2, 8), "temperature", 4),
]


def speculative_key(method, backend: Backend = "xla"):
    return SpeculativeDecodeKey(DecodeShape(4, 8), "truncate", drafter_of(method, backend))


@pytest.fixture(params=HEADS)
def method(request):
    return request.param


def programs_of(method, devices=1, backend: Backend = "xla", dtype="float32", **changes):
    config = dataclasses.replace(CONFIG, **changes.pop("config", {}))
    head = dataclasses.replace(CONFIGS[method], **changes)
    mesh, rules = make_mesh(devices), ShardingRules()
    loop = WatchedLayers(HEADS[method].pages(head))
    context = StepContext(config, mesh, rules, Kernels(backend), 16, dtype, loop=loop)
    params = abstract_params(config, dtype, mesh, rules)
    params |= {DRAFT_HEAD: describe_head(head, dtype, mesh)}
    return Programs(context, params, BLOCKS, SLOTS, texts=DraftTextSizes(0))


@pytest.mark.parametrize(
    ("index", "devices"),
    [
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in [(0, 1), (3, 1)]),
        (2, 1),
        (3, 2),
    ],
    ids=str,
)
def test_all_pages_are_updated_in_place(method, index, devices):
    programs = programs_of(method, devices)
    key = [*KEYS, speculative_key(method)][index]
    compiled = program_of(programs, key).lower().compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    assert memory.alias_size_in_bytes >= programs.cache.block_bytes * BLOCKS
    for leaf in jax.tree.leaves(programs.kv):
        assert leaf.sharding is not None
        shard = leaf.sharding.shard_shape(leaf.shape)
        assert hlo.copies(text, math.prod(shard)) == []


@pytest.mark.parametrize(
    "key", [CopyBlocksKey(8), *(BlockRowsKey(1, 16, out) for out in (True, False))], ids=str
)
def test_copies_of_blocks_take_all_that_a_block_holds(method, key):
    programs = programs_of(method)
    kv, *_ = program_of(programs, key).arguments
    assert jax.tree.leaves(kv) == jax.tree.leaves(programs.kv)
    of_head = {"eagle3": 2 + 1, "dflash": 2 * 2}[method]
    assert len(jax.tree.leaves(kv)) == 2 * CONFIG.num_hidden_layers + of_head
    program_of(programs, key).lower()


def test_a_block_has_room_for_what_the_head_reads(method):
    heads = 2 * 2 * 128
    floats = {"eagle3": heads + CONFIG.hidden_size, "dflash": 2 * heads}[method]
    with_head = programs_of(method).cache
    plain = dataclasses.replace(with_head, beside=())
    assert with_head.block_bytes - plain.block_bytes == 4 * 16 * floats
    # Each of two devices holds the head's part whole.
    split = programs_of(method, 2).cache
    split_plain = dataclasses.replace(split, beside=())
    assert split.block_bytes - split_plain.block_bytes == 4 * 16 * floats


def test_sequences_are_known_by_their_lengths_alone(method):
    state = programs_of(method).draft_state
    assert state is not None
    assert bytes_per_device((state,)) == 4 * SLOTS
    assert state.history is state.corpus is None


def test_fewer_layers_stand_for_the_whole_model(method):
    shallow = programs_of(method).with_layers(2)
    assert len(shallow.kv) == 3
    for key in [*KEYS, speculative_key(method)]:
        program_of(shallow, key).lower()


def test_the_layers_that_memory_is_planned_with_keep_as_many_states_as_all(method):
    whole = programs_of(method, states=(2, 4, 6), config={"num_hidden_layers": 9})

    def num_kept(programs):
        program = program_of(programs, KEYS[0])
        return str(jax.make_jaxpr(program.function)(*program.arguments)).count(
            "optimization_barrier"
        )

    assert num_kept(whole.with_layers(whole.context.loop.num_probed)) == num_kept(whole)
    assert num_kept(whole.with_layers(2)) < num_kept(whole)


@pytest.mark.parametrize("is_drafting", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_programs_for_a_gpu_are_traced_with_its_kernels(method, is_drafting):
    import_all("mosaic")
    programs = programs_of(method, backend="mosaic", dtype="bfloat16")
    program = program_of(programs, speculative_key(method, "mosaic") if is_drafting else KEYS[0])
    traced = trace_for_h200(program.function, *program.arguments)
    assert "paged_decode_attention" in str(traced.jaxpr)
    kv, *_ = traced.out_info
    assert {leaf.dtype for leaf in jax.tree.leaves(kv[-1])} == {jnp.dtype("bfloat16")}
