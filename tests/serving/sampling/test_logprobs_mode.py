"""Log-probabilities of the model's own logits or of what was sampled, as the engine is told."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from jaxinfer import EngineConfig, SamplingParams
from jaxinfer.serving.requests.result import OK
from jaxinfer.serving.sampling.sampler import sample
from tests.serving.sampling.sampling_reference import make_rows, pack, packed_specs, run
from tests.serving.small_llm import GREEDY, PROMPTS, reference_logits, small_llm

VOCAB, COUNT = 96, 7
PROMPT, OUTPUT = [1, 2, 3], [4, 4, 5, 1]
PARAMS = [
    SamplingParams(temperature=0.0, logprobs=1),
    SamplingParams(temperature=0.3, logprobs=0),
    SamplingParams(temperature=4.0, min_p=0.05),
    SamplingParams(temperature=2.0, top_k=3, logprobs=2),
    SamplingParams(top_p=0.3),
    SamplingParams(repetition_penalty=3.0, presence_penalty=1.0, frequency_penalty=-1.0),
    SamplingParams(logit_bias={7: 50.0}, logprobs=5),
    SamplingParams(allowed_token_ids=[3, 50, 90]),
]


def log_softmax(logits):
    wide = np.asarray(logits, np.float64)
    highest = wide.max(-1, keepdims=True)
    return wide - highest - np.log(np.exp(wide - highest).sum(-1, keepdims=True))


def sample_raw(logits, num_devices=1, mode="raw_logprobs"):
    """The full sampler's report of unedited logits, on a vocabulary that devices share."""
    rows = make_rows(PARAMS, VOCAB, prompt=PROMPT, output=OUTPUT)
    arrays = pack(rows, "full", batch_size=len(PARAMS), vocab_size=VOCAB)
    mesh = jax.make_mesh((num_devices,), ("tensor",), axis_types=(AxisType.Auto,))
    step = partial(sample, mode="full", axis="tensor", max_logprobs=COUNT, logprobs_mode=mode)
    specs = (PartitionSpec(None, "tensor"), packed_specs("full"))
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
    )
    return jax.tree.map(np.asarray, jax.jit(sharded)(logits, arrays))


def random_logits(seed):
    return np.random.default_rng(seed).normal(size=(len(PARAMS), VOCAB)).astype(np.float32) * 3


@pytest.mark.parametrize("num_devices", [1, 8])
def test_raw_ones_are_the_log_softmax_of_the_logits_as_they_came(num_devices):
    logits = random_logits(0)
    output = sample_raw(logits, num_devices)
    assert (output.status == OK).all()
    expected = log_softmax(logits)
    order = np.argsort(-logits, axis=1)[:, :COUNT]
    np.testing.assert_array_equal(output.top_ids, order)
    likeliest = np.take_along_axis(expected, order, axis=1)
    np.testing.assert_allclose(output.top_logprobs, likeliest, rtol=1e-5)
    chosen = np.take_along_axis(expected, output.tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(output.logprobs, chosen, rtol=1e-5)
    larger = logits > np.take_along_axis(logits, output.tokens[:, None], axis=1)
    np.testing.assert_array_equal(output.ranks, 1 + larger.sum(1))
    assert output.logprobs[0] == output.top_logprobs[0].max()  # greedy: the same bits
    assert np.isfinite(output.top_logprobs).all()


@pytest.mark.parametrize("num_devices", [1, 8])
def test_those_at_the_temperature_heed_nothing_but_the_temperature(num_devices):
    logits = random_logits(2)
    output = sample_raw(logits, num_devices, mode="temperature_logprobs")
    temperatures = [1.0 if params.is_greedy else params.temperature for params in PARAMS]
    expected = log_softmax(logits / np.array(temperatures)[:, None])
    order = np.argsort(-logits, axis=1)[:, :COUNT]
    likeliest = np.take_along_axis(expected, order, axis=1)
    np.testing.assert_allclose(output.top_logprobs, likeliest, rtol=1e-5, atol=1e-6)
    chosen = np.take_along_axis(expected, output.tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(output.logprobs, chosen, rtol=1e-5, atol=1e-6)


def test_an_engine_reports_those_at_the_temperature_of_all_requests():
    """With truncation from all logits; without it the draw's own, which are the same."""
    untruncated = SamplingParams(temperature=0.6, seed=1, max_tokens=6, ignore_eos=True, logprobs=0)
    params = [untruncated, untruncated.clone(top_k=4, top_p=0.7), untruncated.clone(min_p=0.2)]
    with small_llm(logprobs_mode="temperature_logprobs") as llm:
        outputs = [
            llm.generate([PROMPTS[0]], each, use_tqdm=False)[0].outputs[0] for each in params
        ]
    for output in outputs:
        logits = reference_logits([*PROMPTS[0], *output.token_ids])[len(PROMPTS[0]) - 1 : -1]
        expected = log_softmax(logits / 0.6)
        got = [
            entry[token].logprob
            for entry, token in zip(output.logprobs, output.token_ids, strict=True)
        ]
        np.testing.assert_allclose(got, expected[range(6), output.token_ids], atol=1e-4)


def test_what_is_reported_changes_no_token():
    logits = random_logits(1)
    processed = run(logits, PARAMS, mode="full", prompt=PROMPT, output=OUTPUT)
    np.testing.assert_array_equal(sample_raw(logits).tokens, processed.tokens)
    assert np.isneginf(processed.top_logprobs[7]).any()  # all but three are banned


@settings(max_examples=60)
@given(
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
    top_k=st.sampled_from([-1, 0, 5]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    logprobs=st.sampled_from([None, 0, 1]),
)
def test_a_cheap_mode_serves_exactly_those_whose_draw_gives_them(logprobs, **fields):
    params = SamplingParams(logprobs=logprobs, **fields)
    plain = params.clone(logprobs=None).sampling_mode()
    mode = {free: params.sampling_mode(free) for free in ("all", "unscaled", "none")}
    if logprobs is None:
        assert set(mode.values()) == {plain}
        return
    assert mode["none"] == "full"
    drawn = logprobs == 0 and fields["temperature"] > 0
    assert (mode["all"] != "full") == drawn
    as_it_is = fields == {"temperature": 1.0, "top_k": fields["top_k"], "top_p": 1.0, "min_p": 0.0}
    assert (mode["unscaled"] != "full") == (drawn and as_it_is and fields["top_k"] <= 0)


def test_a_configuration_says_whose_are_free():
    raw, processed = EngineConfig(), EngineConfig(logprobs_mode="processed_logprobs")
    assert raw.free_logprobs(has_custom_functions=False) == "unscaled"
    assert raw.free_logprobs(has_custom_functions=True) == "none"
    assert processed.free_logprobs(has_custom_functions=True) == "all"
    with pytest.raises(ValueError, match="logprobs_mode must be"):
        EngineConfig(logprobs_mode="raw_logits")


SAMPLED = SamplingParams(max_tokens=6, ignore_eos=True, seed=3)
CASES = {
    "greedy": GREEDY.clone(logprobs=2),
    "at temperature 1": SAMPLED.clone(logprobs=0),
    "scaled": SAMPLED.clone(temperature=0.5, logprobs=0),
    "truncated": SAMPLED.clone(temperature=2.0, top_k=4, logprobs=0),
    "edited": SAMPLED.clone(repetition_penalty=2.0, logit_bias={5: 3.0}, logprobs=1),
    "at first edited": SAMPLED.clone(min_tokens=2, logprobs=0, temperature=0.7),
}


@pytest.fixture(scope="module")
def raw():
    with small_llm() as llm:
        yield llm


def values(llm, params, prompt=PROMPTS[2]):
    """The tokens of an answer and their log-probabilities."""
    ((output,),) = [each.outputs for each in llm.generate([prompt], params, use_tqdm=False)]
    pairs = zip(output.logprobs, output.token_ids, strict=True)
    logprobs = [entry[token].logprob for entry, token in pairs]
    assert output.cumulative_logprob == pytest.approx(sum(logprobs))
    return output.token_ids, logprobs


@pytest.mark.parametrize("name", CASES)
def test_whatever_is_sampled_raw_ones_are_those_that_score_gives(raw, name):
    tokens, logprobs = values(raw, CASES[name])
    (scored,) = raw.score((PROMPTS[2], tokens))
    np.testing.assert_allclose(logprobs, scored.token_logprobs[-len(tokens) :], atol=1e-4)


def test_processed_ones_are_those_of_the_distribution_sampled():
    with small_llm(logprobs_mode="processed_logprobs") as llm:
        tokens, logprobs = values(llm, CASES["scaled"])
    rows = reference_logits([*PROMPTS[2], *tokens])[len(PROMPTS[2]) - 1 : -1]
    expected = log_softmax(rows / 0.5)[np.arange(len(tokens)), tokens]
    np.testing.assert_allclose(logprobs, expected, atol=1e-4)


@pytest.mark.slow("alone")
def test_raw_ones_are_the_models_own_beside_custom_functions():
    with small_llm(logits_processor=lambda logits, state: logits * 3) as llm:
        tokens, logprobs = values(llm, CASES["at temperature 1"])
        (scored,) = llm.score((PROMPTS[2], tokens))
    np.testing.assert_allclose(logprobs, scored.token_logprobs[-len(tokens) :], atol=1e-4)
