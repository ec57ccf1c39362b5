"""Entropy, support and labels of rows are those of a NumPy reference, however they are split."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.result import OK
from jaxinfer.serving.sampling.given_tokens import report_given
from jaxinfer.serving.sampling.measures import measure
from jaxinfer.serving.sampling.rows import unpack_rows
from jaxinfer.serving.sampling.sampler import sample
from jaxinfer.serving.sampling.vocab_axis import VocabAxis
from tests.serving.sampling.sampling_reference import (
    make_rows,
    pack,
    packed_specs,
    probabilities,
    processed_logits,
    run,
)

VOCAB, COUNT = 96, 7
PROMPT, OUTPUT = [1, 2, 3], [4, 4, 5, 1]
PLAIN = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.3, top_p=0.9),
    SamplingParams(temperature=4.0, min_p=0.05),
    SamplingParams(temperature=2.0, top_k=3),
    SamplingParams(top_k=40, top_p=0.3),
]
EDITED = [
    SamplingParams(repetition_penalty=3.0, presence_penalty=1.0, frequency_penalty=-1.0),
    SamplingParams(allowed_token_ids=[3, 50, 90], temperature=0.5),
]
LABELS = jnp.array([[0, 5, 95], [95, 1, 1]] * 4, jnp.int32)
CASES = [(1, "raw_logprobs"), (8, "temperature_logprobs"), (8, "processed_logprobs")]


def random_logits(seed, rows):
    return np.random.default_rng(seed).normal(size=(rows, VOCAB)).astype(np.float32) * 3


def entropy(probabilities):
    kept = probabilities[probabilities > 0]
    return -(kept * np.log(kept)).sum()


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def measured(logits, params, mode, num_devices):
    """The full sampler's output with measures, on a vocabulary that devices share."""
    rows = make_rows(params, VOCAB, prompt=PROMPT, output=OUTPUT)
    arrays = pack(rows, "full", batch_size=len(params), vocab_size=VOCAB)
    axis, labels = VocabAxis("tensor"), LABELS[: len(params)]
    beside = partial(measure, labels=labels, count=COUNT, logprobs_mode=mode, axis=axis)
    options = {"axis": "tensor", "max_logprobs": COUNT, "logprobs_mode": mode, "measure": beside}
    return sharded(partial(sample, mode="measured", **options), num_devices, logits, arrays)


def sharded(step, num_devices, logits, arrays):
    mesh = jax.make_mesh((num_devices,), ("tensor",), axis_types=(AxisType.Auto,))
    specs = (PartitionSpec(None, "tensor"), packed_specs("full"))
    out = PartitionSpec()
    step = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return jax.tree.map(np.asarray, jax.jit(step)(logits, arrays))


def check(output, logits, params, mode, edited):
    """Compare all measures with NumPy's; `edited` are the logits after edits."""
    assert (output.status == OK).all()
    found = output.measures
    for i, each in enumerate(params):
        drawn = probabilities(edited[i], each)
        if each.is_greedy:
            drawn = np.eye(VOCAB)[edited[i].argmax()]
        temperature = 1.0 if each.is_greedy else each.temperature
        own = softmax(logits[i] / (1.0 if mode == "raw_logprobs" else temperature))
        before = softmax(edited[i] / temperature)
        near = partial(pytest.approx, abs=1e-5, rel=1e-5)
        assert found.entropy[i] == near(entropy(own))
        assert found.size[i] == (drawn > 0).sum()
        assert found.log_mass[i] == near(np.log(before[drawn > 0].sum()))
        assert found.drawn_entropy[i] == near(entropy(drawn))
        assert found.least[i] == near(np.log(drawn[drawn > 0].min()))
        likeliest = np.argsort(-edited[i], kind="stable")[: min(COUNT, found.size[i])]
        assert found.top_ids[i, : len(likeliest)].tolist() == likeliest.tolist()
        reported = probabilities(edited[i], each) if mode == "processed_logprobs" else own
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(
                found.labels[i], np.log(reported[np.asarray(LABELS[i])]), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize(("num_devices", "mode"), CASES)
def test_measures_of_drawn_tokens_are_those_of_numpy(num_devices, mode):
    params, logits = PLAIN + EDITED, random_logits(0, len(PLAIN + EDITED))
    output = measured(logits, params, mode, num_devices)
    edited = [
        processed_logits(row, each, PROMPT, OUTPUT)
        for row, each in zip(logits, params, strict=True)
    ]
    check(output, logits, params, mode, edited)
    plain = run(logits, params, mode="full", prompt=PROMPT, output=OUTPUT)
    np.testing.assert_array_equal(output.tokens, plain.tokens)  # measuring changes no draw


@pytest.mark.parametrize(("num_devices", "mode"), CASES)
def test_a_given_token_has_the_report_that_it_has_when_it_is_drawn(num_devices, mode):
    logits = random_logits(1, len(PLAIN))
    drawn = measured(logits, PLAIN, mode, num_devices)

    def given(logits, arrays):
        return report_given(
            logits,
            jnp.asarray(drawn.tokens),
            unpack_rows(arrays.scalars),
            LABELS[: len(PLAIN)],
            count=COUNT,
            logprobs_mode=mode,
            axis=VocabAxis("tensor"),
        )

    rows = make_rows(PLAIN, VOCAB, prompt=PROMPT, output=OUTPUT)
    arrays = pack(rows, "full", batch_size=len(PLAIN), vocab_size=VOCAB)
    output = sharded(given, num_devices, logits, arrays)
    check(output, logits, PLAIN, mode, logits)
    for name in ("tokens", "status", "ranks", "top_ids"):
        np.testing.assert_array_equal(getattr(output, name), getattr(drawn, name))
    np.testing.assert_allclose(output.logprobs, drawn.logprobs, rtol=1e-6)
    np.testing.assert_allclose(output.top_logprobs, drawn.top_logprobs, rtol=1e-6)


def test_tokens_that_can_not_be_drawn_add_nothing_and_have_no_probability():
    logits = random_logits(2, 2)
    logits[:, 10:] = -np.inf
    params = [SamplingParams(), SamplingParams(top_k=2)]
    output = measured(logits, params, "processed_logprobs", 1)
    assert output.measures.size.tolist() == [10, 2]
    assert output.measures.entropy[0] == pytest.approx(entropy(softmax(logits[0])), abs=1e-5)
    assert np.isneginf(output.measures.labels[0, 2])
    assert output.measures.log_mass[0] == 0.0
