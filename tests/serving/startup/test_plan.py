"""What an engine plans fits what its kernels can address, on any GPU and as configured."""

import contextlib
import dataclasses
import functools
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.planning.blocks import blocks_on_devices
from jaxinfer.planning.memory import prefill_bytes
from jaxinfer.planning.named_shapes import SERVED_SHAPES, shape_config
from jaxinfer.planning.shapes import shape_of
from jaxinfer.serving.programs.choose_buckets import choose_buckets, for_pooling
from jaxinfer.serving.programs.layout import PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.startup import memory, plan
from jaxinfer.serving.startup.plan import plan_engine
from tests.serving.runner.tiny_runner import CONFIG

_GIB = 2**30


@functools.cache
def _model(shape, devices):
    config = ModelConfig.from_directory(BUNDLED_MODEL) if shape is None else shape_config(shape)
    mesh, rules = make_mesh(devices), ShardingRules()
    return config, mesh, rules, abstract_params(config, jnp.bfloat16, mesh, rules)


def _programs(shape, devices, block_size):
    config, mesh, rules, params = _model(shape, devices)
    return Programs(
        StepContext(config, mesh, rules, Kernels("mosaic"), block_size, "bfloat16"), params, 2, 257
    )


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.sampled_from([None, *SERVED_SHAPES]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([8, 16, 32, 64, 128, 256]),
    st.integers(24, 192),
)
def test_what_fits_a_gpu_can_be_addressed(shape, devices, block_size, gibibytes):
    """So the limit takes no memory from anybody, and no automatic size is ever beyond it."""
    if shape is None:
        devices = min(devices, 4)  # heads of the bundled model
    programs = _programs(shape, devices, block_size)
    blocks = blocks_on_devices(
        gibibytes * _GIB,  # and no weights
        block_bytes=programs.cache.block_bytes,
        step_bytes=0,
        utilization=1,
    )
    assert blocks <= programs.cache.most_blocks


def test_a_device_addresses_its_own_share_of_the_heads():
    one, four = (_programs("8b", devices, 16) for devices in (1, 4))
    assert one.cache.most_blocks == most_pages(16, 8)
    assert four.cache.most_blocks == most_pages(16, 2)


def _plan(monkeypatch, blocks, model_config=CONFIG, **config):
    monkeypatch.setattr(memory, "blocks_on_cpu", lambda **_: blocks)
    mesh, rules = make_mesh(1), ShardingRules()
    params = abstract_params(model_config, jnp.float32, mesh, rules)
    config = EngineConfig(block_size=256, compilation_cache_dir="", **config)
    return plan_engine(params, model_config, config, mesh, rules)


def test_buckets_are_chosen_for_the_weights_of_a_device(monkeypatch):
    given = {}
    monkeypatch.setattr(
        plan, "choose_buckets", lambda **sizes: choose_buckets(**(given.update(sizes) or sizes))
    )
    _plan(monkeypatch, 8)
    params = abstract_params(CONFIG, jnp.float32, make_mesh(1), ShardingRules())
    assert given["weight_bytes"] == memory.bytes_per_device(params) > 0


@pytest.mark.parametrize(
    ("shape", "num_steps", "most_rows"),
    [("0.6b", 8, 8), ("1.7b", 8, 8), ("4b", 1, 0), ("8b", 1, 0), ("30b-a3b", 8, 1)],
)
def test_few_rows_have_several_steps_where_a_step_is_as_short_as_its_launch(
    shape, num_steps, most_rows
):
    config = shape_config(shape)
    params = abstract_params(config, jnp.bfloat16, make_mesh(1), ShardingRules())
    multi_step = functools.partial(plan.multi_step, params, config)
    assert multi_step(EngineConfig(), "gpu") == (num_steps, most_rows)
    assert multi_step(EngineConfig(online=True), "gpu") == (min(num_steps, 4), most_rows)
    assert multi_step(EngineConfig(), "cpu") == (1, 0)
    assert multi_step(EngineConfig(num_decode_steps=3), "gpu") == (3, 8)


def test_few_rows_read_few_experts():
    config = shape_config("30b-a3b")
    params = abstract_params(config, jnp.bfloat16, make_mesh(1), ShardingRules())
    read = functools.partial(memory.bytes_read_by_rows, params, config.experts)
    whole = memory.bytes_per_device(params)
    assert 0.1 < read(1) / whole < 0.12  # 8 of 128 experts, and all that is not an expert's
    assert 0.4 < read(8) / whole < 0.5
    assert read(1000) == pytest.approx(whole)


def test_automatic_sizing_ends_where_kernels_do(monkeypatch):
    most = most_pages(256, CONFIG.num_key_value_heads)
    assert _plan(monkeypatch, most - 1).report.num_kv_blocks == most - 1
    assert _plan(monkeypatch, most + 1).report.num_kv_blocks == most


def test_without_a_length_the_longest_that_fits_the_memory_is_taken_and_said(monkeypatch):
    # As on a GPU, whose blocks are counted after the length is chosen.
    monkeypatch.setattr(memory, "longest_on_cpu", lambda **_: 4096)
    config = dataclasses.replace(CONFIG, max_position_embeddings=4096)
    plan = _plan(monkeypatch, 4, model_config=config)
    assert plan.report.max_model_len == 3 * 256
    assert plan.buckets.widths[-1] < 4096 // 256
    said = "max_model_len is 768, the longest that fits the KV cache; the model could do 4,096"
    assert said in str(plan.report)
    with pytest.raises(CapacityError, match=r"max_model_len=1024 does not fit .* at most 768"):
        _plan(monkeypatch, 4, model_config=config, max_model_len=1024)


def test_more_blocks_than_kernels_address_are_refused_before_anything_is_allocated(monkeypatch):
    most = most_pages(256, CONFIG.num_key_value_heads)
    assert _plan(monkeypatch, 0, num_kv_blocks=most).report.num_kv_blocks == most
    with pytest.raises(CapacityError, match=f"num_kv_blocks={most + 1} .* at most {most}"):
        _plan(monkeypatch, 0, num_kv_blocks=most + 1)


class Lowering:
    """Traces at once what it is asked to lower, and remembers what workers would trace."""

    executables = None

    def __init__(self):
        self.ahead = {}

    def prepare(self, programs, key):
        pass

    def trace(self, programs, keys):
        self.ahead |= dict.fromkeys(keys, programs.num_blocks)

    def lower(self, programs, key, options):
        return program_of(programs, key).lower()


def _count_as_on_a_gpu(monkeypatch, step_bytes, runner="pooling"):
    """The blocks counted for a GPU of 64 MiB, and the programs that are traced meanwhile."""
    monkeypatch.setattr(memory, "free_bytes", lambda devices, utilization: 64 << 20)
    monkeypatch.setattr(memory, "step_bytes", lambda programs: step_bytes)
    config = EngineConfig(
        compilation_cache_dir="", runner=runner, max_num_seqs=4, max_num_batched_tokens=64
    )
    mesh, rules = make_mesh(1), ShardingRules()
    params = abstract_params(CONFIG, jnp.float32, mesh, rules)
    context = StepContext(CONFIG, mesh, rules, Kernels("xla"), config.block_size, "float32")
    programs = Programs(context, params, 2, 5, samples=runner == "generate")
    buckets = choose_buckets(
        max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, block_size=16, platform="cpu"
    )
    if runner == "pooling":
        buckets = for_pooling(buckets, "cpu")
    lowering = Lowering()
    with contextlib.closing(plan._compiler(programs, lowering=lowering, config=config)) as compiled:
        gpu = SimpleNamespace(platform="gpu")
        counted = plan._count_blocks(programs, buckets, config, [gpu], compiled, lowering)
    return counted[0], lowering.ahead, programs


def test_programs_that_only_read_are_traced_for_the_blocks_that_are_expected(monkeypatch):
    estimate = prefill_bytes(shape_of(CONFIG), "float32", tokens=64, devices=1)
    blocks, ahead, programs = _count_as_on_a_gpu(monkeypatch, step_bytes=estimate // 2)
    assert set(ahead.values()) == {blocks}
    assert set(map(type, ahead)) == {PrefillShape}
    most = (64 << 20) - estimate
    assert 0.98 * most < blocks * programs.cache.block_bytes <= most


@pytest.mark.parametrize("step_bytes", [1 << 20, 32 << 20])
def test_where_another_number_is_measured_that_one_counts(monkeypatch, step_bytes):
    estimate = 0 if step_bytes > 1 << 20 else 16 << 20  # too low, too high
    monkeypatch.setattr(plan, "prefill_bytes", lambda *_, **__: estimate)
    blocks, ahead, programs = _count_as_on_a_gpu(monkeypatch, step_bytes)
    assert blocks not in ahead.values()
    room = (64 << 20) - step_bytes
    assert 0.98 * room < blocks * programs.cache.block_bytes <= room


def test_an_engine_that_generates_leaves_no_block_free(monkeypatch):
    monkeypatch.setattr(plan, "prefill_bytes", lambda *_, **__: pytest.fail("was expected"))
    _, ahead, _ = _count_as_on_a_gpu(monkeypatch, 1 << 20, runner="generate")
    assert set(ahead.values()) == {2}  # they don't depend on the number
