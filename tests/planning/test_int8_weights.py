"""Plans count integers and scales as the engine holds them, device by device."""

import dataclasses
import json
import math

import jax
import pytest

from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.sharding import make_mesh
from jaxinfer.planning import plan
from jaxinfer.planning.cost import model_cost
from jaxinfer.planning.memory import plan_memory
from jaxinfer.planning.model_files import read_shape
from jaxinfer.planning.operations import operations, weight_bytes_per_device
from jaxinfer.planning.shapes import ModelShape, shape_of
from jaxinfer.profiling.costs import step_costs
from jaxinfer.profiling.trace.steps import StepFacts
from tests.model import tiny

FORMATS = [
    Quantization("int8"),
    Quantization("int8", ignore=()),
    Quantization("int8", ignore=("re:.*down_proj", "model.layers.1.self_attn.k_proj")),
]


def _config(quantization, **changes):
    return tiny.config(num_key_value_heads=2, quantization=quantization, **changes)


@pytest.mark.parametrize("quantization", [None, *FORMATS])
@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_take_what_their_leaves_take(quantization, num_devices, tied):
    config = _config(quantization, tie_word_embeddings=tied)
    leaves = jax.tree.leaves(abstract_params(config, "bfloat16", make_mesh(num_devices)))
    held = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )
    assert weight_bytes_per_device(shape_of(config), "bfloat16", num_devices) == held


@pytest.mark.parametrize("quantization", FORMATS)
def test_a_step_reads_integers_and_scales(quantization):
    config = _config(quantization, tie_word_embeddings=False)
    shape, plain = shape_of(config), shape_of(_config(None, tie_word_embeddings=False))
    saved = weight_bytes_per_device(plain, "bfloat16", 1)
    saved -= weight_bytes_per_device(shape, "bfloat16", 1)
    assert saved > 0
    assert model_cost(plain).weight_bytes - model_cost(shape).weight_bytes == saved

    def read(shape):
        return sum(part.bytes_per_token for part in operations(shape, "bfloat16", 1))

    assert read(plain) - read(shape) == saved
    facts = StepFacts(kind="decode", rows=4, tokens=4, context_tokens=64, pairs=64)

    def moved(shape):
        return sum(cost.num_bytes for cost in step_costs(shape, "bfloat16", facts).values())

    assert moved(plain) - moved(shape) == saved
    recorded = json.loads(json.dumps(dataclasses.asdict(shape)))
    assert ModelShape.from_values(recorded) == shape


def test_a_plan_of_a_directory_says_so(tmp_path):
    shape = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    shape |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config = tiny.config(
        **shape, vocab_size=151936, tie_word_embeddings=False, max_position_embeddings=40960
    )
    config = dataclasses.replace(config, dtype="bfloat16", quantization=Quantization("int8"))
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    planned, plain = plan(tmp_path), plan("Qwen3-8B")
    # 6.95 billion weights of 36 layers with half the bytes, less 4 for each output.
    assert plain.memory.weight_bytes - planned.memory.weight_bytes == 36 * (
        4096 * 2 * (4096 + 1024) + 3 * 4096 * 12288 - 4 * (2 * 4096 + 2 * 1024 + 2 * 12288 + 4096)
    )
    assert planned.memory.num_kv_blocks > plain.memory.num_kv_blocks
    assert planned.parameters == plain.parameters
    first = planned.batches[0]
    assert first.tpot.expected_s is None
    assert first.tpot.floor_s < 0.6 * plain.batches[0].tpot.floor_s
    assert any("int8 weights" in note for note in planned.notes)
    json.dumps(planned.to_dict())


def test_the_largest_step_holds_the_matrices_that_it_makes():
    from jaxinfer.config import EngineConfig
    from jaxinfer.planning import DEVICES

    _, plain = read_shape("Qwen3-8B")
    shape = dataclasses.replace(plain, quantization=Quantization("int8"))
    memories = [
        plan_memory(each, DEVICES["h200"], "bfloat16", EngineConfig()) for each in (plain, shape)
    ]
    assert memories[1].step_bytes - memories[0].step_bytes == 2 * 4096 * 12288 * 2
