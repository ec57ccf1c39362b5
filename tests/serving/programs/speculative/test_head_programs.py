"""Programs of engines with a draft head: pages in place, on devices split or not, and for GPUs."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.choice import Backend
from jaxinfer.kernels.implementations import import_all
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.draft_head.weights import DRAFT_HEAD, describe_head
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.kinds.copy_blocks import CopyBlocksKey, SwapKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.speculative.draft_pages import WatchedLayers
from jaxinfer.serving.programs.speculative.drafter import DraftTextSizes
from jaxinfer.serving.programs.speculative.head_drafter import HeadDrafter
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.startup.memory import bytes_per_device
from tests import hlo
from tests.kernels.h200_target import trace_for_h200
from tests.model import tiny
from tests.model.draft_head.random_head import head_config

CONFIG = tiny.config(
    num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=128
)
HEAD = dataclasses.replace(
    head_config(CONFIG, states=(1, 2, 3)),
    layer=dataclasses.replace(head_config(CONFIG).layer, head_dim=128),
)
DRAFTER = HeadDrafter(3, HEAD, Kernels("xla"))
BLOCKS, SLOTS = 1001, 5
KEYS = [
    PrefillShape(64, 4, 8),
    DecodeShape(4, 8),
    SampledDecodeKey(DecodeShape(2, 8), "temperature", 4),
    SpeculativeDecodeKey(DecodeShape(4, 8), "truncate", DRAFTER),
]


def programs_of(devices, backend: Backend = "xla", dtype="float32"):
    mesh, rules = make_mesh(devices), ShardingRules()
    loop = WatchedLayers(HEAD)
    context = StepContext(CONFIG, mesh, rules, Kernels(backend), 16, dtype, loop=loop)
    params = abstract_params(CONFIG, dtype, mesh, rules)
    params |= {DRAFT_HEAD: describe_head(HEAD, dtype, mesh)}
    return Programs(context, params, BLOCKS, SLOTS, texts=DraftTextSizes(0))


@pytest.mark.parametrize(
    ("key", "devices"),
    [(KEYS[0], 1), (KEYS[2], 1), (KEYS[3], 1), (KEYS[3], 2)],
    ids=lambda each: type(each).__name__ if each in KEYS else str(each),
)
def test_all_pages_are_updated_in_place(key, devices):
    programs = programs_of(devices)
    compiled = program_of(programs, key).lower().compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    assert memory.alias_size_in_bytes >= programs.cache.block_bytes * BLOCKS
    for leaf in jax.tree.leaves(programs.kv):
        assert leaf.sharding is not None
        shard = leaf.sharding.shard_shape(leaf.shape)
        size = 1
        for length in shard:
            size *= length
        assert hlo.copies(text, size) == []


@pytest.mark.parametrize("key", [CopyBlocksKey(8), SwapKey(16, True), SwapKey(16, False)], ids=str)
def test_copies_of_blocks_take_all_that_a_block_holds(key):
    programs = programs_of(1)
    kv, *_ = program_of(programs, key).arguments
    assert jax.tree.leaves(kv) == jax.tree.leaves(programs.kv)
    assert len(jax.tree.leaves(kv)) == 2 * (CONFIG.num_hidden_layers + 1) + 1
    program_of(programs, key).lower()


def test_a_block_has_room_for_what_the_head_reads():
    plain = dataclasses.replace(programs_of(1).cache, beside=())
    with_head, floats = programs_of(1).cache, 2 * 2 * 128 + CONFIG.hidden_size
    assert with_head.block_bytes - plain.block_bytes == 4 * 16 * floats
    assert with_head.host_block_bytes == with_head.block_bytes
    # Each of two devices holds the head's part whole, and host memory once.
    split, split_plain = programs_of(2).cache, dataclasses.replace(programs_of(2).cache, beside=())
    assert split.block_bytes - split_plain.block_bytes == 4 * 16 * floats
    assert split.host_block_bytes == with_head.host_block_bytes


def test_sequences_are_known_by_their_lengths_alone():
    state = programs_of(1).draft_state
    assert state is not None
    assert bytes_per_device((state,)) == 4 * SLOTS
    assert state.history is state.corpus is None


def test_fewer_layers_stand_for_the_whole_model():
    shallow = programs_of(1).with_layers(2)
    assert len(shallow.kv) == 3
    for key in KEYS:
        program_of(shallow, key).lower()


def test_the_layers_that_memory_is_planned_with_keep_as_many_states_as_all():
    config = dataclasses.replace(CONFIG, num_hidden_layers=9)
    head = dataclasses.replace(HEAD, states=(2, 4, 6))
    loop, rules = WatchedLayers(head), ShardingRules()
    context = StepContext(config, make_mesh(1), rules, Kernels("xla"), 16, "float32", loop=loop)
    params = abstract_params(config, "float32", context.mesh, rules)
    params |= {DRAFT_HEAD: describe_head(head, "float32", context.mesh)}
    whole = Programs(context, params, BLOCKS, SLOTS, texts=DraftTextSizes(0))

    def num_kept(programs):
        program = program_of(programs, KEYS[0])
        return str(jax.make_jaxpr(program.function)(*program.arguments)).count(
            "optimization_barrier"
        )

    assert num_kept(whole.with_layers(loop.num_probed)) == num_kept(whole)
    assert num_kept(whole.with_layers(2)) < num_kept(whole)


@pytest.mark.parametrize("key", KEYS[::3], ids=lambda key: type(key).__name__)
def test_programs_for_a_gpu_are_traced_with_its_kernels(key):
    import_all("mosaic")
    programs = programs_of(1, "mosaic", "bfloat16")
    if isinstance(key, SpeculativeDecodeKey):
        drafter = dataclasses.replace(DRAFTER, kernels=Kernels("mosaic"))
        key = dataclasses.replace(key, drafter=drafter)
    program = program_of(programs, key)
    traced = trace_for_h200(program.function, *program.arguments)
    assert "paged_decode_attention" in str(traced.jaxpr)
    kv, *_ = traced.out_info
    assert kv[-1].features.dtype == jnp.bfloat16
