"""Run by test_h200_start.py in a process of its own: what a start on an H200 does before it runs.

    python -m tests.serving.startup.h200_start SHAPE DIRECTORY CORES

Lowers and compiles a few of an engine's programs with default arguments, through the program store
in DIRECTORY, the workers and the compiler that a start uses. What came of it is printed as JSON.
The device does not exist, so nothing runs, and XLA's cache, which only a device reads, is off.
"""

import dataclasses
import faulthandler
import functools
import json
import sys

import jax
import jax.export
import jax.numpy as jnp

from jaxinfer.config import EngineConfig
from jaxinfer.kernels.attention.shared_prefix import rows_in_item
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.serving.compile import tracing
from jaxinfer.serving.compile.compilation import CompiledPrograms
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.compile.program_store import ProgramStore
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.program_set import options_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from tests import hlo
from tests.kernels.h200_target import h200_mesh

_LAYERS = 2  # the last computes only what is sampled from, with the kernel for decoding
_LIMIT_S = 300  # after which it says where every thread stands
_CONFIG = EngineConfig()
_BLOCKS = 2_056_192  # the bundled model's on an H200


def _buckets(config: ModelConfig) -> Buckets:
    return choose_buckets(
        max_num_seqs=_CONFIG.max_num_seqs,
        max_num_batched_tokens=_CONFIG.token_budget("gpu"),
        max_model_len=config.max_context_length,
        block_size=_CONFIG.block_size,
        platform="gpu",
        rows_in_item=rows_in_item(config.num_attention_heads // config.num_key_value_heads),
    )


def _keys(buckets: Buckets) -> list[ProgramKey]:
    """One of each kind, as small as they come; as many as workers are started for."""
    shared = next(shape for shape in buckets.decode_shapes() if shape.work_items)
    sampled = SampledDecodeKey(buckets.decode_shape(2, buckets.widths[0]), "temperature")
    return [
        shared,
        sampled,
        buckets.prefill_shape(1, 1),
        SamplerKey(buckets.rows[0], "temperature"),
    ]


def _programs(config: ModelConfig) -> Programs:
    mesh, rules = h200_mesh(1), ShardingRules()
    params = abstract_params(config, jnp.bfloat16, mesh, rules)
    context = StepContext(config, mesh, rules, Kernels("mosaic"), _CONFIG.block_size, "bfloat16")
    return Programs(context, params, _BLOCKS, _CONFIG.max_num_seqs + 1)


def main(shape: str, directory: str, cores: str) -> None:
    """Compile; print how many programs were traced here and read, and what each launches."""
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    tracing.usable_cores = lambda: int(cores)
    jax.export.default_export_platform = lambda: "cuda"  # as on a machine with the GPU
    config = (
        ModelConfig.from_directory(BUNDLED_MODEL) if shape == "bundled" else shape_config(shape)
    )
    keys = _keys(_buckets(config))
    programs = _programs(dataclasses.replace(config, num_hidden_layers=_LAYERS))
    lowering = Lowering(ProgramStore(directory))

    def options(key: ProgramKey) -> dict:
        return options_of(key, platform="gpu", num_devices=1)

    compiled = CompiledPrograms(functools.partial(lowering.lower, programs), options)
    try:
        in_order = functools.partial(lowering.as_ready, programs)
        for _ in compiled.compile_each(keys, show_progress=False, in_order=in_order):
            pass
    finally:
        lowering.close()
    kernels = {type(key).__name__: hlo.mosaic_kernels(compiled[key].as_text()) for key in keys}
    print(json.dumps([lowering.num_traced, lowering.num_read, kernels]))


if __name__ == "__main__":
    main(*sys.argv[1:])
