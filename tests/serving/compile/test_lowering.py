"""Programs from disk are the ones that tracing gives, and only where nothing has changed."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.compile.program_store import ProgramStore
from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKey
from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from tests.serving.runner.tiny_runner import CONFIG

pytestmark = pytest.mark.usefixtures("programs_on_disk")

_KEYS = [
    DecodeShape(4, 8),
    PrefillShape(16, 4, 8),
    SamplerKey(4, "full"),
    SampledDecodeKey(DecodeShape(4, 8), "temperature"),  # the sampler above brings all arrays
    PromptLogprobsKey(16),
    BlockRowsKey(1, 2, out=False),
]


def _programs(devices=1, blocks=64, dtype=jnp.float32, **context):
    mesh, rules = make_mesh(devices), ShardingRules()
    params = abstract_params(CONFIG, dtype, mesh, rules)
    settings = StepContext(CONFIG, mesh, rules, Kernels("xla"), 8, jnp.dtype(dtype).name, **context)
    return Programs(settings, params, blocks, 5)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
@pytest.mark.parametrize("key", _KEYS, ids=lambda key: type(key).__name__)
def test_a_program_from_disk_compiles_to_what_tracing_gives(tmp_path, key, devices):
    first, second = Lowering(ProgramStore(tmp_path)), Lowering(ProgramStore(tmp_path))
    programs = _programs(devices)
    written = first.lower(programs, key, {})
    read = second.lower(programs, key, {})
    assert (first.num_traced, first.num_read) == (1, 0)
    assert (second.num_traced, second.num_read) == (0, 1)
    assert first.seconds > 0
    assert written.as_text() == read.as_text()
    traced, stored = program_of(programs, key).lower().compile(), read.compile()
    before, after = traced.memory_analysis(), stored.memory_analysis()
    assert after.alias_size_in_bytes == before.alias_size_in_bytes
    assert after.temp_size_in_bytes == before.temp_size_in_bytes
    assert stored.output_shardings == traced.output_shardings


@pytest.mark.parametrize(
    ("programs", "key"),
    [
        (_programs(), DecodeShape(2, 8)),
        (_programs(blocks=65), DecodeShape(4, 8)),
        (_programs(devices=2), DecodeShape(4, 8)),
        (_programs(dtype=jnp.bfloat16), DecodeShape(4, 8)),
    ],
    ids=["shape", "blocks", "devices", "dtype"],
)
def test_another_engine_finds_nothing(tmp_path, programs, key):
    store = ProgramStore(tmp_path)
    Lowering(store).lower(_programs(), DecodeShape(4, 8), {})
    other = Lowering(store)
    other.lower(programs, key, {})
    assert (other.num_traced, other.num_read) == (1, 0)


def test_another_model_of_the_same_shapes_finds_nothing(tmp_path):
    store = ProgramStore(tmp_path)
    programs = _programs()
    Lowering(store).lower(programs, DecodeShape(4, 8), {})
    config = dataclasses.replace(CONFIG, rope_theta=CONFIG.rope_theta + 1)
    context = dataclasses.replace(programs.context, config=config)
    other = Lowering(store)
    other.lower(dataclasses.replace(programs, context=context), DecodeShape(4, 8), {})
    assert other.num_read == 0


def test_a_damaged_entry_is_traced_again_with_the_same_result(tmp_path):
    programs, key = _programs(), DecodeShape(4, 8)
    whole = Lowering(ProgramStore(tmp_path)).lower(programs, key, {}).as_text()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    again = Lowering(ProgramStore(tmp_path))
    assert again.lower(programs, key, {}).as_text() == whole
    assert (again.num_traced, again.num_read) == (1, 0)
    assert Lowering(ProgramStore(tmp_path)).lower(programs, key, {}).as_text() == whole


def test_programs_with_a_callers_function_are_traced_every_time(tmp_path):
    programs = _programs(logits_processor=lambda logits, state: logits)
    for key in (SamplerKey(4, "temperature"), SampledDecodeKey(DecodeShape(4, 8), "temperature")):
        for _ in range(2):
            lowering = Lowering(ProgramStore(tmp_path))
            lowering.lower(programs, key, {})
            assert (lowering.num_traced, lowering.num_read) == (1, 0)
    assert not list(tmp_path.iterdir())
    # What does not run it is shared with engines that have none.
    Lowering(ProgramStore(tmp_path)).lower(_programs(), DecodeShape(4, 8), {})
    lowering = Lowering(ProgramStore(tmp_path))
    lowering.lower(programs, DecodeShape(4, 8), {})
    assert lowering.num_read == 1


def test_without_a_store_everything_is_traced():
    lowering = Lowering(None)
    assert isinstance(
        lowering.lower(_programs(), SamplerKey(4, "temperature"), {}), jax.stages.Lowered
    )
    assert (lowering.num_traced, lowering.num_read) == (1, 0)
