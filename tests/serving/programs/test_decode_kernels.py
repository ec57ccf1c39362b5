"""Which kernels a decode step is made of on a Hopper GPU."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.sample_steps import sampled_decode_step
from jaxinfer.serving.programs.steps import StepContext, decode_step
from tests.kernels.h200_target import compile_for_h200, needs_plugin
from tests.model import tiny

LAYERS, S, P = 2, 16, 2000
CONFIG = tiny.config(
    hidden_size=1024,
    intermediate_size=3072,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    num_hidden_layers=LAYERS,
)


def _step(rows, backend):
    """`decode_step`, and the shapes of its arguments."""
    mesh, rules, shape = make_mesh(1), ShardingRules(), DecodeShape(rows, 64)
    context = StepContext(CONFIG, mesh, rules, Kernels(backend), S, "bfloat16")
    run = functools.partial(decode_step, context=context, shape=shape)
    return run, (*_state(mesh, rules), _int32(shape.size), _int32(17))


def _sampled_step(rows, backend, num_steps=1):
    """`sampled_decode_step`, and the shapes of its arguments."""
    mesh, rules, shape = make_mesh(1), ShardingRules(), DecodeShape(rows, 64)
    context = StepContext(CONFIG, mesh, rules, Kernels(backend), S, "bfloat16")
    run = functools.partial(
        sampled_decode_step, context=context, shape=shape, mode="temperature", num_steps=num_steps
    )
    allowed = _int32(17, -(-CONFIG.vocab_size // 32))
    return run, (*_state(mesh, rules), _int32(shape.size), _int32(17), allowed)


_multi_step = functools.partial(_sampled_step, num_steps=4)


def _state(mesh, rules):
    page = jax.ShapeDtypeStruct((P, S, CONFIG.num_key_value_heads, CONFIG.head_dim), jnp.bfloat16)
    described = abstract_params(CONFIG, jnp.bfloat16, mesh, rules)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), described)
    return params, (Pages(page, page),) * LAYERS


def _int32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _kernels(run, arguments):
    """Names of the fused products in a traced program; each name stands there twice a kernel."""
    traced = str(jax.make_jaxpr(run)(*arguments))
    names = collections.Counter(re.findall(r"small_[a-z]+", traced))
    return {name: count // 2 for name, count in names.items()}


@pytest.mark.parametrize(
    ("rows", "program"),
    [
        pytest.param(
            rows, program, marks=() if program is _multi_step and rows == 8 else pytest.mark.slow
        )
        for program in (_step, _sampled_step, _multi_step)
        for rows in (2, 8, 16)
    ],
)
def test_few_rows_take_fused_products_in_every_layer(program, rows):
    found = _kernels(*program(rows, "mosaic"))
    assert found == {
        "small_plain": LAYERS,
        "small_gated": LAYERS,
        "small_residual": 2 * LAYERS,
    }


@pytest.mark.parametrize(("rows", "backend"), [(32, "mosaic"), (2, "xla")])
def test_many_rows_and_other_backends_do_not(rows, backend):
    assert _kernels(*_step(rows, backend)) == {}


@needs_plugin
@pytest.mark.parametrize(
    ("program", "donated"), [(_step, (1,)), (_sampled_step, (1, 3)), (_multi_step, (1, 3))]
)
def test_a_layer_is_six_kernels_and_copies_no_pool(program, donated):
    run, arguments = program(2, "mosaic")
    compiled = compile_for_h200(run, *arguments, donate=donated)
    text = compiled.as_text()
    # Products 4, norm_rope_write, and attention, which combines splits itself if they are short.
    assert text.count('custom_call_target="mosaic_gpu') == 6 * LAYERS
    pools = 2 * LAYERS * P * S * CONFIG.num_key_value_heads * CONFIG.head_dim * 2
    assert compiled.memory_analysis().alias_size_in_bytes >= pools
    assert compiled.memory_analysis().temp_size_in_bytes < pools / 10
