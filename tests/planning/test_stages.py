"""A plan of a pipeline: bytes of each stage, and what the fullest one leaves for KV blocks."""

import dataclasses
import json
import subprocess
import sys

import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.stages.staged_params import make_pipeline_mesh, stage_meshes
from jaxinfer.planning import plan
from jaxinfer.planning.shapes import shape_of
from jaxinfer.planning.stages import stage_shapes
from jaxinfer.serving.programs.pipeline.stage_programs import PipelinePrograms
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.startup import memory
from jaxinfer.testing import TINY_CONFIG


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("num_stages", "devices"), [(2, 1), (4, 1), (2, 2)])
def test_weights_of_stages_are_those_that_the_engine_holds(tied, num_stages, devices):
    config = dataclasses.replace(TINY_CONFIG, num_hidden_layers=4, tie_word_embeddings=tied)
    mesh = make_pipeline_mesh(num_stages, devices)
    params = abstract_params(config, "bfloat16", mesh)
    last = stage_meshes(mesh)[-1]
    context = StepContext(config, last, ShardingRules(), Kernels("xla"), 16, "bfloat16")
    programs = PipelinePrograms(context, params, 2, 5, devices=mesh)
    shape = dataclasses.replace(shape_of(config), dtype="bfloat16")
    held = [memory.bytes_per_device(stage.params) for stage in programs.stages]
    planned = stage_shapes(shape, num_stages)
    assert [each.weight_bytes("bfloat16", devices) for each in planned] == held


def test_a_model_that_no_device_holds_fits_several():
    assert not plan("Qwen3-32B", "a100-40gb", batches=[1]).fits
    found = plan("Qwen3-32B", "a100-40gb", pipeline_parallel_size=4, batches=[1, 16])
    assert found.fits
    stages = found.memory.stages
    assert sum(stage.num_layers for stage in stages) == 64
    assert found.memory.num_kv_blocks == min(stage.num_kv_blocks for stage in stages)
    assert [stage.slot_bytes > 0 for stage in stages] == [False, False, False, True]
    assert found.to_dict()["memory"]["stages"][1]["first_layer"] == stages[0].num_layers


def test_a_token_takes_as_long_as_on_one_device_and_shares_run_at_once():
    one, two = (plan("Qwen3-8B", pipeline_parallel_size=n, batches=[1, 64, 128]) for n in (1, 2))
    assert two.batches[0].tpot.floor_s == one.batches[0].tpot.floor_s
    assert two.batches[2].tpot.floor_s == one.batches[1].tpot.floor_s
    assert one.batches[2].tpot.floor_s < 2 * two.batches[2].tpot.floor_s
    assert two.batches[0].ttft.floor_s == pytest.approx(one.batches[0].ttft.floor_s)
    assert one.batches[2].ttft.floor_s / two.batches[2].ttft.floor_s == pytest.approx(2, rel=0.05)
    assert two.batches[0].tpot.expected_s is None


def test_the_command_prints_every_stage_without_jax():
    code = (
        "import sys; from jaxinfer.plan import main; "
        "assert main(['Qwen3-8B', '--pipeline-parallel-size', '2', '--json']) == 0; "
        "assert 'jax' not in sys.modules"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    stages = json.loads(printed.stdout)["memory"]["stages"]
    assert [stage["num_layers"] for stage in stages] == [19, 17]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="40 is more than the model's 28 layers"):
        plan("Qwen3-0.6B", pipeline_parallel_size=40)
