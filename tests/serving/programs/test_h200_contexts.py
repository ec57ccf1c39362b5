"""Steps of context parallelism, compiled for two H200s: in place, and in few launches."""

import functools

import jax.numpy as jnp
import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, with_contexts
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.peer_buffers import have_peer_buffers
from jaxinfer.serving.programs.program_set import options_of, program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.startup.contexts import num_exchanging, sequences_on
from tests import hlo
from tests.kernels.h200_target import h200_mesh, needs_plugin

pytestmark = [needs_plugin, pytest.mark.slow]

CONFIG = shape_config("0.6b")
LAYERS, BLOCKS, WIDTH = CONFIG.num_hidden_layers, 8192, 1024
DECODE = {"norm_rope_write": 1, "paged_decode_attention": 1, "combine_partly": 1, "all_reduce": 1}
PREFILL = {"norm_rope_write": 1, "paged_prefill_attention": 1}


@functools.cache
def _programs():
    mesh, rules = with_contexts(h200_mesh(2), ShardingRules(), 2)
    kernels = Kernels("mosaic")
    peers = have_peer_buffers(mesh, num_exchanging(mesh, rules), kernels)
    sequences = sequences_on(mesh, rules)
    context = StepContext(CONFIG, mesh, rules, kernels, 32, "bfloat16", peers, sequences=sequences)
    return Programs(context, abstract_params(CONFIG, jnp.bfloat16, mesh, rules), BLOCKS, 9)


@pytest.mark.parametrize(
    ("key", "kernels"),
    [
        (DecodeShape(2, WIDTH), DECODE),
        (SampledDecodeKey(DecodeShape(2, WIDTH), "temperature"), DECODE),
        (PrefillShape(2048, 8, WIDTH), PREFILL),
        (PrefillShape(2048, 8, WIDTH, all_tokens=True), PREFILL),
    ],
    ids=["decode", "sampled", "prefill", "scored"],
)
def test_each_layer_launches_its_kernels_and_copies_no_pages(key, kernels):
    programs = _programs()
    options = options_of(key, platform="gpu", num_devices=1)
    compiled = program_of(programs, key).lower().compile(compiler_options=options or None)
    found = hlo.mosaic_kernels(compiled.as_text())
    assert {name: found[name] for name in kernels} == {n: LAYERS * c for n, c in kernels.items()}
    kv_bytes = programs.cache.block_bytes * BLOCKS
    assert kv_bytes == BLOCKS * 16 * LAYERS * 2 * 8 * 128 * 2  # 16 of a block's 32 tokens
    assert compiled.memory_analysis().alias_size_in_bytes >= kv_bytes
    assert hlo.copies(compiled.as_text(), BLOCKS * 16 * 8 * 128) == []
