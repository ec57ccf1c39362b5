import functools
import re

import jax.numpy as jnp
import pytest

from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh, num_page_heads
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs import BurstKey, Programs, SamplerKey
from jaxinfer.serving.steps import StepContext
from tests.serving.tiny_runner import CONFIG

_BLOCKS, _BLOCK_SIZE = 64, 8
_FORWARDS = [DecodeShape(4, 8), PrefillShape(16, 4, 8)]


@functools.cache
def _compile(devices, key):
    mesh, rules = make_mesh(devices), ShardingRules()
    context = StepContext(CONFIG, mesh, rules, "xla", _BLOCK_SIZE)
    params = abstract_params(CONFIG, jnp.float32, mesh, rules)
    return Programs(context, params, _BLOCKS, 5).lower(key).compile()


def _local_kv_bytes(devices):
    heads = num_page_heads(CONFIG, devices) // devices
    page = _BLOCK_SIZE * heads * CONFIG.head_dim * 4
    return 2 * CONFIG.num_hidden_layers * _BLOCKS * page


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("key", _FORWARDS, ids=lambda key: type(key).__name__)
def test_pages_are_updated_in_place_on_every_device(devices, key):
    compiled = _compile(devices, key)
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == _local_kv_bytes(devices)
    # A copy of one layer's pages would show among the temporaries or as an instruction.
    page = (_BLOCK_SIZE, num_page_heads(CONFIG, devices) // devices, CONFIG.head_dim)
    pool = "f32[" + ",".join(map(str, (_BLOCKS, *page))) + "]"
    copies = [
        line
        for line in compiled.as_text().splitlines()
        if re.search(rf"= {re.escape(pool)}\S* copy\(", line)
    ]
    assert not copies


def test_a_burst_updates_the_pages_in_place():
    compiled = _compile(1, BurstKey(DecodeShape(4, 8), "greedy", 3))
    slots = 5 * 4
    assert compiled.memory_analysis().alias_size_in_bytes == _local_kv_bytes(1) + slots
    assert compiled.memory_analysis().temp_size_in_bytes < _local_kv_bytes(1)


@pytest.mark.parametrize("key", _FORWARDS, ids=lambda key: type(key).__name__)
def test_a_forward_reduces_twice_a_layer_and_once_for_the_embedding(key):
    text = _compile(2, key).as_text()
    reductions = re.findall(r"= \S+ all-reduce(?:-start)?\(", text)
    assert len(reductions) == 2 * CONFIG.num_hidden_layers + 1
    assert "all-gather" not in text


def test_one_device_runs_no_collective():
    for key in [*_FORWARDS, SamplerKey(4, "greedy")]:
        assert not re.search(r"all-(reduce|gather|to-all)", _compile(1, key).as_text())


@pytest.mark.slow
def test_the_sampler_never_gathers_logits():
    text = _compile(2, SamplerKey(4, "truncate")).as_text()
    gathered = re.findall(r"= (?:f32|s32)\[([\d,]*)\]\S* all-gather", text)
    assert gathered
    largest = max(int(size) for shape in gathered for size in shape.split(",") if size)
    assert largest < CONFIG.vocab_size // 2
