"""A datum is declared in one line, and arrives in the step by its name."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.families import qwen3
from jaxinfer.model.families.table import FAMILIES
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.programs import steps
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import StepContext, decode_step
from jaxinfer.serving.runner.batch_builder import BatchBuilder
from jaxinfer.serving.runner.draft_texts import DraftTexts
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.request_sampling import request_sampling
from jaxinfer.serving.slots.step_data import Datum, Padding
from tests.serving.requests.host_request import host_request
from tests.serving.runner.tiny_runner import CONFIG, Loop, expected_greedy, make_runner, prompts

PADDING_SLOT = 4
_SHAPES = [DecodeShape(3, 5, 2), PrefillShape(100, 7, 3)]


def _adapters(step):
    return np.array([row.request.seed for row in step.rows], np.int32)


def _scales(step):
    return step.context / np.float32(4)


TABLE = (
    Datum("adapter", "row", _adapters, padding=-1),
    Datum("scale", "row", _scales, padding=0.5, dtype="float32"),
    Datum("place", "token", lambda step: 100 + step.positions, padding=-7),
    Datum("owner", "token", lambda step: step.slots[step.row_of_token], Padding.SLOT),
    Datum("pages", "table", lambda step: step.tables + 1000, padding=-2),
    Datum("first", "token", lambda step: step.positions == 0, only="prefill"),
)


def _declaring(shape):
    return dataclasses.replace(shape, extra=TABLE)


class _BucketsWithTable(Buckets):
    def decode_shape(self, *args, **kwargs):
        return _declaring(super().decode_shape(*args, **kwargs))

    def sampled_decode_shape(self, *args, **kwargs):
        return _declaring(super().sampled_decode_shape(*args, **kwargs))

    def prefill_shape(self, *args, **kwargs):
        return _declaring(super().prefill_shape(*args, **kwargs))

    def decode_shapes(self):
        return [*map(_declaring, super().decode_shapes())]

    def sampled_decode_shapes(self):
        return [*map(_declaring, super().sampled_decode_shapes())]

    def prefill_shapes(self):
        return [*map(_declaring, super().prefill_shapes())]


def _with_table(**arguments):
    plain = choose_buckets(**arguments)
    names = [field.name for field in dataclasses.fields(plain)]
    return _BucketsWithTable(**{name: getattr(plain, name) for name in names})


@functools.cache
def _context():
    return StepContext(CONFIG, make_mesh(1), ShardingRules(), Kernels("xla"), 8, "float32")


def _build(*rows, is_decode=False):
    """A packed step of (slot, prompt length, start) rows that feed all the rest."""
    buckets = _with_table(
        max_num_seqs=PADDING_SLOT,
        max_num_batched_tokens=64,
        max_model_len=64,
        block_size=8,
        platform="cpu",
    )
    builder = BatchBuilder(
        buckets,
        draft_texts=DraftTexts(),
        max_num_seqs=PADDING_SLOT,
        block_size=8,
        vocab_size=CONFIG.vocab_size,
        prepare=functools.partial(
            request_sampling, vocab_size=CONFIG.vocab_size, eos_token_ids=[], tokenizer=None
        ),
    )
    scheduled = []
    for slot, length, start in rows:
        params = SamplingParams(temperature=0.0)
        request = host_request(f"r{slot}", [*range(length)], params, seed=30 + slot)
        request.slot, request.blocks.table = slot, [slot + 1, slot + 11]
        scheduled.append(ScheduledRow(request, start, length - start, 1))
    return builder.build(Schedule(scheduled, is_decode, num_tokens=0))


def _received(batch, step, **arguments):
    """What a compiled step hands on; `arguments` make it append that to a list."""

    def run(packed):
        seen = []
        last_tokens = jnp.zeros(PADDING_SLOT + 1, jnp.int32)
        given = {name: functools.partial(each, seen) for name, each in arguments.items()}
        step({}, (), packed, last_tokens, context=_context(), shape=batch.shape, **given)
        return seen[0]

    return jax.jit(run)(batch.packed)


def _forward(seen, params, kv, inputs, last_tokens, peers, *, context):
    seen.append(inputs)
    return kv, jnp.zeros((len(inputs.slots), 1)), inputs.slots


def test_a_decode_step_gets_each_datum_by_name():
    batch = _build((2, 10, 9), (0, 3, 2), is_decode=True)
    inputs = _received(batch, decode_step, forward=_forward)
    assert inputs.of_rows["adapter"][:3].tolist() == [32, 30, -1]
    assert inputs.of_rows["scale"][:3].tolist() == [2.5, 0.75, 0.5]
    assert inputs.of_tokens["place"][:3].tolist() == [109, 102, -7]
    assert inputs.of_tokens["owner"][:3].tolist() == [2, 0, PADDING_SLOT]
    assert inputs.of_rows["pages"][:3, :2].tolist() == [[1003, 1013], [1001, 1011], [-2, -2]]
    assert "first" not in inputs.of_tokens
    assert inputs.context_lens[:3].tolist() == [10, 3, 0]


def test_the_layers_of_a_prefill_get_each_datum_by_name(monkeypatch):
    def prefill(*args, record, **kwargs):
        def layers(self, params, kv, tokens, *_, **__):
            record(tokens)
            return kv, jnp.zeros((len(tokens.context_lens), 1))

        monkeypatch.setattr(steps.WholeSequences, "run_layers", layers)
        model = architecture_of(CONFIG)
        headless = dataclasses.replace(model, final_hidden=lambda params, hidden, config: hidden)
        family = dataclasses.replace(qwen3.FAMILY, architecture=lambda: headless)
        monkeypatch.setitem(FAMILIES, "qwen3", family)
        steps.prefill_step(*args, **kwargs)

    batch = _build((2, 10, 7), (0, 2, 0))
    inputs = _received(batch, prefill, record=list.append)
    assert inputs.of_rows["adapter"][:3].tolist() == [32, 30, -1]
    assert inputs.of_tokens["place"][:6].tolist() == [107, 108, 109, 100, 101, -7]
    assert inputs.of_tokens["owner"][:6].tolist() == [2, 2, 2, 0, 0, PADDING_SLOT]
    assert inputs.of_tokens["first"][:6].tolist() == [0, 0, 0, 1, 0, 0]
    assert inputs.positions[:5].tolist() == [7, 8, 9, 0, 1]


def test_a_declared_datum_reaches_the_layers_of_an_engine_without_another_edit(
    monkeypatch, tmp_path
):
    seen, run_layers = [], steps.WholeSequences.run_layers

    def spy(self, params, kv, tokens, *args, **kwargs):
        seen.append({**tokens.of_rows, **tokens.of_tokens}.keys())
        return run_layers(self, params, kv, tokens, *args, **kwargs)

    monkeypatch.setattr(steps.WholeSequences, "run_layers", spy)
    monkeypatch.setattr("jaxinfer.serving.startup.plan.choose_buckets", _with_table)
    runner = make_runner(compilation_cache_dir=str(tmp_path))
    loop, asked = Loop(runner), prompts(np.random.default_rng(0), [3, 17])
    for prompt in asked:
        loop.add(prompt)
    assert loop.run() == [expected_greedy(prompt, 6) for prompt in asked]
    runner.close()
    names = {datum.name for datum in TABLE}
    assert names in seen
    assert names - {"first"} in seen


@pytest.mark.parametrize("shape", _SHAPES)
def test_warm_up_runs_on_padding_that_was_declared(shape):
    shape = dataclasses.replace(shape, extra=TABLE)
    inputs = shape.split(shape.blank())
    assert (inputs.of_rows["adapter"] == -1).all()
    assert (inputs.of_rows["scale"] == 0.5).all()
    assert not inputs.context_lens.any()


@pytest.mark.parametrize("shape", _SHAPES)
def test_what_is_added_lies_after_what_every_step_has(shape):
    more = dataclasses.replace(shape, extra=TABLE)
    before = shape.split(np.arange(shape.size, dtype=np.int32))
    after = more.split(np.arange(more.size, dtype=np.int32))
    for name in set(StepInputs._fields) - {"shared", "sampling", "of_tokens", "of_rows"}:
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_names_are_unique():
    shape = DecodeShape(3, 5, extra=(TABLE[0], TABLE[0]))
    with pytest.raises(ValueError, match="named 'adapter'"):
        shape.split(shape.blank())


@pytest.mark.parametrize(("wrong", "named"), [({"kind": "rows"}, "rows"), ({"dtype": "f2"}, "f2")])
def test_a_datum_of_no_known_kind_or_dtype_is_an_error(wrong, named):
    with pytest.raises(ValueError, match=named):
        Datum(**({"name": "adapter", "kind": "row", "values": _adapters} | wrong))
