"""Rollouts are `generate`'s tokens and log-probabilities, as arrays that jit takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer import FinishCode, Rollouts, SamplingParams
from jaxinfer.errors import StepError
from jaxinfer.rollouts.rollout import choose_pad, rollout_params
from tests.rollouts import trainers
from tests.serving.small_llm import CONFIG, PROMPTS, reference_logprobs, small_llm

N = 3
SAMPLED = SamplingParams(temperature=1.0, max_tokens=8, seed=5, ignore_eos=True)
LAST = CONFIG.vocab_size - 1


@pytest.fixture(scope="module")
def llm():
    with small_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def rollouts(llm):
    return llm.rollout(PROMPTS, SAMPLED, n=N)


def test_rows_are_what_generate_gives_prompt_by_prompt(llm, rollouts):
    wanted = SAMPLED.clone(n=N, logprobs=0)
    outputs = llm.generate(PROMPTS, wanted, use_tqdm=False)
    rows = [(o.prompt_token_ids, c) for o in outputs for c in o.outputs]
    assert rollouts.prompt_ids.shape == rollouts.prompt_mask.shape == (9, 13)
    assert rollouts.completion_ids.shape == (9, 8)
    for i, (prompt, completion) in enumerate(rows):
        assert rollouts.prompt_ids[i, -len(prompt) :].tolist() == prompt
        assert rollouts.prompt_mask[i].sum() == rollouts.prompt_lengths[i] == len(prompt)
        assert rollouts.completion_ids[i].tolist() == completion.token_ids
        np.testing.assert_array_equal(
            rollouts.logprobs[i], np.float32(completion.logprobs.values), strict=True
        )
    assert not rollouts.prompt_mask[0, :-3].any()
    assert (rollouts.prompt_ids[~rollouts.prompt_mask] == LAST).all()
    assert set(rollouts.finish_reasons) == {FinishCode.LENGTH}


def test_logprobs_are_those_of_the_plain_forward(rollouts):
    for i in (0, 4, 8):
        prompt = rollouts.prompt_ids[i][rollouts.prompt_mask[i]].tolist()
        tokens = [*prompt, *rollouts.completion_ids[i].tolist()]
        expected = reference_logprobs(tokens)[len(prompt) - 1 : -1]
        chosen = np.take_along_axis(expected, rollouts.completion_ids[i][:, None], axis=1)[:, 0]
        np.testing.assert_allclose(rollouts.logprobs[i], chosen, atol=1e-4)


def test_the_end_token_is_kept_with_its_logprob(llm, rollouts):
    end = int(rollouts.completion_ids[0, 2])
    ended = llm.rollout(PROMPTS, SAMPLED.clone(stop_token_ids=[end]), n=N, pad_to=(16, 10))
    assert ended.completion_ids.shape == (9, 10)
    assert ended.prompt_ids.shape == (9, 16)
    length = ended.lengths[0]
    assert ended.finish_reasons[0] == FinishCode.STOP
    assert ended.completion_ids[0, length - 1] == end
    assert ended.completion_mask[0].tolist() == [True] * length + [False] * (10 - length)
    np.testing.assert_allclose(ended.logprobs[0, :length], rollouts.logprobs[0, :length])
    assert ended.logprobs[0, length - 1] < 0
    assert not ended.logprobs[~ended.completion_mask].any()
    assert (ended.completion_ids[~ended.completion_mask] == LAST).all()


def test_an_end_token_can_not_be_the_padding(llm):
    ends = SAMPLED.clone(stop_token_ids=[7, LAST])
    with pytest.raises(ValueError, match="pad_token_id 7 is an end token, which completions hold"):
        llm.rollout(PROMPTS, ends, pad_token_id=7)
    assert llm.rollout(PROMPTS, ends).pad_token_id == LAST - 1
    assert llm.rollout(PROMPTS, ends, pad_token_id=3).pad_token_id == 3
    with pytest.raises(ValueError, match="pad_token_id must be from 0 to 511, got 512"):
        llm.rollout(PROMPTS, SAMPLED, pad_token_id=512)
    with pytest.raises(TypeError, match="pad_token_id must be an integer, got '0'"):
        llm.rollout(PROMPTS, SAMPLED, pad_token_id="0")


def test_the_default_padding_is_no_token_of_text(tokenizer):
    count, ends = len(tokenizer), frozenset(tokenizer.eos_token_ids)
    assert choose_pad(None, ends, count + 9, tokenizer) == count + 8
    assert choose_pad(None, ends | {count + 8}, count + 9, tokenizer) == count + 7
    special = choose_pad(None, ends, count, tokenizer)
    assert tokenizer.is_special(special)
    assert special not in ends


def test_padding_that_was_sampled_is_said(llm, rollouts, caplog):
    llm.rollout(PROMPTS, SAMPLED, n=N, pad_token_id=int(rollouts.completion_ids[0, 0]))
    assert "was sampled in" in caplog.text


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"pad_to": (12, 8)}, ValueError, r"prompts\[2\] has 13 tokens; pad_to has room for 12"),
        ({"pad_to": (13, 7)}, ValueError, "max_tokens is 8, but pad_to has room for completions"),
        ({"pad_to": 20}, TypeError, r"pad_to must be \(prompt width, completion width\), got 20"),
        ({"n": 0}, ValueError, "n must be from 1"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_runs(llm, options, kind, text):
    with pytest.raises(kind, match=text):
        llm.rollout(**({"prompts": PROMPTS, "params": SAMPLED} | options))
    assert not llm.has_unfinished_requests()


def test_requests_make_no_text_and_no_objects_for_each_token():
    params = rollout_params(SAMPLED.clone(logprobs=5, prompt_logprobs=2), 2)
    assert params == SAMPLED.clone(n=2, logprobs=0, detokenize=False)
    assert rollout_params(SAMPLED.clone(n=4), None).n == 4


def test_stop_strings_need_text():
    with pytest.raises(ValueError, match=r"a rollout makes no text .*; use stop_token_ids"):
        rollout_params(SamplingParams(stop="x"), None)


def test_rollouts_go_through_jit_and_keep_its_program(llm):
    @jax.jit
    def mean(rollouts: Rollouts) -> jax.Array:
        return jnp.sum(rollouts.logprobs) / jnp.sum(rollouts.completion_mask, dtype=jnp.float32)

    for count in (8, 5):
        made = llm.rollout(PROMPTS, SAMPLED.clone(max_tokens=count), n=2, pad_to=(16, 8))
        np.testing.assert_allclose(mean(made), made.logprobs.sum() / made.lengths.sum(), rtol=1e-5)
    assert mean._cache_size() == 1


def test_a_sharding_puts_rows_on_devices(llm):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    made = llm.rollout(PROMPTS, SAMPLED, n=2, device=sharding)
    assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(made))
    plain = llm.rollout(PROMPTS, SAMPLED, n=2)
    jax.tree.map(np.testing.assert_array_equal, made, plain)


def test_rows_bear_the_version_of_their_weights():
    with small_llm() as llm:
        assert not llm.rollout(PROMPTS, SAMPLED).weight_versions.any()
        llm.update_params(trainers.other_params())
        assert llm.rollout(PROMPTS, SAMPLED).weight_versions.tolist() == [1, 1, 1]


def test_rows_that_failed_have_no_tokens(llm):
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, trainers.other_params())
    with small_llm(params=bad) as broken:
        made = broken.rollout(PROMPTS, SAMPLED, pad_to=(13, 8), allow_errors=True)
    assert made.finish_reasons.tolist() == [FinishCode.ERROR] * 3
    assert not made.completion_mask.any()
    assert np.isfinite(made.logprobs).all()


@pytest.mark.parametrize("failing", [[1], [0, 1, 2]])
def test_prompts_that_failed_are_an_error_unless_their_rows_may_be_masked(
    llm, rollouts, monkeypatch, failing
):
    generate = llm.generate

    def spoil(*arguments, **options):
        outputs = generate(*arguments, **options)
        for i in failing:
            outputs[i].error, outputs[i].cause = f"cause {i}", ArithmeticError()
            for completion in outputs[i].outputs:
                completion.finish_reason, completion.logprobs = "error", None
        return outputs

    monkeypatch.setattr(llm, "generate", spoil)
    first = failing[0]
    named = f"{len(failing)} of 3 prompts failed; the first, prompts.{first}.: cause {first};"
    with pytest.raises(StepError, match=f"{named} give allow_errors=True") as caught:
        llm.rollout(PROMPTS, SAMPLED, n=N)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    made = llm.rollout(PROMPTS, SAMPLED, n=N, allow_errors=True)
    rows = np.isin(np.arange(3).repeat(N), failing)
    assert not made.completion_mask[rows].any()
    assert (made.finish_reasons == FinishCode.ERROR).tolist() == rows.tolist()
    width = made.completion_ids.shape[1]
    np.testing.assert_array_equal(
        made.completion_ids[~rows], rollouts.completion_ids[~rows, :width]
    )


def test_packing_keeps_every_token_once(rollouts):
    packed = rollouts.packed(32)
    assert packed.token_ids.shape[1] == 32
    for i in range(len(rollouts.lengths)):
        here = packed.rows == i
        prompt = rollouts.prompt_ids[i][rollouts.prompt_mask[i]]
        completion = rollouts.completion_ids[i][rollouts.completion_mask[i]]
        assert packed.token_ids[here].tolist() == [*prompt, *completion]
        assert packed.positions[here].tolist() == [*range(len(prompt) + len(completion))]
        assert packed.loss_mask[here].sum() == len(completion)
        np.testing.assert_array_equal(
            packed.logprobs[here & packed.loss_mask], rollouts.logprobs[i][: len(completion)]
        )
        assert len(set(packed.segment_ids[here])) == 1
    empty = packed.segment_ids == 0
    assert (packed.rows[empty] == -1).all()
    assert (packed.token_ids[empty] == rollouts.pad_token_id).all()
    assert not packed.loss_mask[empty].any()


def test_packing_fills_rows_and_has_a_fixed_number_of_them(rollouts):
    needed = len(rollouts.packed(32).token_ids)
    assert needed < len(rollouts.lengths)
    assert rollouts.packed(32, num_rows=9).token_ids.shape == (9, 32)
    with pytest.raises(ValueError, match=f"num_rows is 1, but rows of 32 have to be {needed}"):
        rollouts.packed(32, num_rows=1)
    with pytest.raises(ValueError, match="row 6 has 21 tokens, more than length=20"):
        rollouts.packed(20)
