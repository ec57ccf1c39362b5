"""`LLM.decide`: probabilities of labels, equal to those of the whole head."""

import dataclasses

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from jaxinfer import SamplingParams, StepError
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.serving.pooling.blocking_calls import run_task
from jaxinfer.serving.pooling.decisions import decision
from jaxinfer.serving.pooling.head_reader import HeadReader
from jaxinfer.serving.pooling.task import PoolingTask
from jaxinfer.serving.pooling.token_logits import prompt_logits
from tests.serving.runner.tiny_runner import expected_logits, tiny_params
from tests.serving.small_llm import (
    CONFIG,
    MAX_MODEL_LEN,
    PROMPTS,
    reference_logits,
    small_llm,
    small_params,
)

LABELS = ["b", " the", "!", "a long label"]
LONG = [1 + i % 50 for i in range(50)]
TIED = dataclasses.replace(CONFIG, tie_word_embeddings=True)
INT8 = dataclasses.replace(CONFIG, quantization=Quantization("int8", ignore=()))  # of the head, too


def first_tokens(tokenizer, labels=LABELS):
    return [ids[0] for ids in tokenizer.encode_following(labels)]


def expected(tokenizer, logits, labels=LABELS):
    """The softmax of the last position's whole logits, restricted to labels."""
    return np.asarray(jax.nn.softmax(logits[-1][np.asarray(first_tokens(tokenizer, labels))]))


def check(decision, probabilities):
    assert list(decision.probabilities) == LABELS
    values = list(decision.probabilities.values())
    np.testing.assert_allclose(values, probabilities, atol=1e-5)
    assert decision.label == LABELS[int(np.argmax(probabilities))]
    assert sum(values) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", ["untied", "tied", pytest.param("int8", marks=pytest.mark.slow)])
def test_probabilities_are_those_of_the_whole_head(tokenizer, kind, devices):
    config = {"untied": CONFIG, "tied": TIED, "int8": INT8}[kind]
    params = tiny_params(TIED) if kind == "tied" else small_params()
    if kind == "int8":
        params = quantize_params(params, INT8.quantization)
        assert params["lm_head"]["weight"].dtype == jnp.int8
    with small_llm(
        params=params, config=config, tokenizer=tokenizer, tensor_parallel_size=devices
    ) as llm:
        if devices == 2:
            head = llm._loaded.replicas[0].runner.resident.head
            leaf = head["model"]["embed_tokens"] if kind == "tied" else head["lm_head"]
            shards = {each.data.shape[0] for each in jax.tree.leaves(leaf)[0].addressable_shards}
            assert shards == {CONFIG.vocab_size // 2}
        for prompt, found in zip(PROMPTS, llm.decide(PROMPTS, LABELS), strict=True):
            logits = expected_logits(prompt, params, config)
            check(found, expected(tokenizer, logits))
            assert found.prompt_token_ids == prompt
            of_labels = logits[-1][np.asarray(first_tokens(tokenizer))]
            np.testing.assert_allclose(list(found.logits.values()), of_labels, atol=1e-4)


def test_texts_are_prompts(llm, tokenizer):
    text = "Once upon a time"
    for given in (text, [text], {"prompt": text}):
        (found,) = llm.decide(given, LABELS)
        assert found.prompt_token_ids == tokenizer.encode(text)
        check(found, expected(tokenizer, reference_logits(tokenizer.encode(text))))


def test_many_questions_share_the_prefix_of_their_prompts(llm):
    questions = [[*LONG, 100 + i] for i in range(6)]
    alone = []
    for question in questions:
        llm.reset_prefix_cache()
        alone += llm.decide([question], LABELS)
    assert [found.num_cached_tokens for found in alone] == [0] * 6
    llm.reset_prefix_cache()
    llm.decide([LONG], LABELS)
    cached = [llm.decide([question], LABELS)[0] for question in questions]
    assert [found.num_cached_tokens for found in cached] == [48] * 6
    for one, other in zip(alone, cached, strict=True):
        assert one.logits == other.logits  # bit for bit
    together = llm.decide(questions, LABELS)
    assert [found.num_cached_tokens for found in together] == [48] * 6
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(list(one.logits.values()), list(other.logits.values()), 1e-5)


def test_rows_of_the_head_are_read_once_for_each_set_of_labels(llm, monkeypatch):
    calls = []
    module = "jaxinfer.serving.pooling.head_reader"
    original = HeadReader.read.__globals__["head_rows"]
    monkeypatch.setattr(f"{module}.head_rows", lambda *args: (calls.append(1), original(*args))[1])
    for labels in (["x", "y"], ["x", "z"], ["x", "y"], ["x", "y"]):
        llm.decide(PROMPTS, labels)
    assert len(calls) == 2


def test_the_oldest_rows_are_forgotten(llm, tokenizer, monkeypatch):
    monkeypatch.setattr("jaxinfer.serving.pooling.head_reader._MOST_SETS", 2)
    for labels in (["x", "y"], ["x", "z"], ["y", "z"]):
        llm.decide(PROMPTS[:1], labels)
    assert list(llm._handle.head._rows) == [
        tuple(first_tokens(tokenizer, labels)) for labels in (["x", "z"], ["y", "z"])
    ]


def test_new_weights_decide_by_their_own_head(tokenizer):
    new = tiny_params(seed=7)
    with small_llm(tokenizer=tokenizer) as llm:
        before = llm.decide(PROMPTS, LABELS)
        llm.update_params(new)
        after = llm.decide(PROMPTS, LABELS)
    for prompt, old, found in zip(PROMPTS, before, after, strict=True):
        assert (old.weight_version, found.weight_version) == (0, 1)
        check(old, expected(tokenizer, reference_logits(prompt)))
        check(found, expected(tokenizer, reference_logits(prompt, new)))


def test_weights_that_are_swapped_behind_a_prompt_are_an_error(tokenizer, monkeypatch):
    module = "jaxinfer.serving.pooling.blocking_calls"
    with small_llm(tokenizer=tokenizer) as llm:
        run = run_task.__globals__["run_requests"]

        def swap_after(*args, **kwargs):
            outputs = run(*args, **kwargs)
            llm.update_params(tiny_params(seed=7))
            return outputs

        monkeypatch.setattr(f"{module}.run_requests", swap_after)
        with pytest.raises(StepError, match="weights were swapped"):
            llm.decide(PROMPTS, LABELS)


def test_an_engine_that_has_slept_decides_the_same(tokenizer):
    with small_llm(tokenizer=tokenizer) as llm:
        before = llm.decide(PROMPTS, LABELS)
        llm.sleep(1)
        with pytest.raises(RuntimeError, match="asleep"):
            llm.decide(PROMPTS, LABELS)
        llm.wake_up()
        assert llm.decide(PROMPTS, ["x", *LABELS])[0].probabilities["x"] > 0
        assert llm.decide(PROMPTS, LABELS) == before


def test_replicas_decide_the_same(llm, tokenizer):
    with small_llm(tokenizer=tokenizer, data_parallel_size=2) as other:
        for one, two in zip(
            llm.decide(PROMPTS, LABELS), other.decide(PROMPTS, LABELS), strict=True
        ):
            np.testing.assert_allclose(list(one.logits.values()), list(two.logits.values()), 1e-5)


def test_a_prompt_may_fill_the_models_length_and_nothing_is_sampled(llm):
    engine = llm._loaded.replicas[0].engine
    before = engine.counts().generation_tokens
    (found,) = llm.decide([[3] * MAX_MODEL_LEN], LABELS)
    assert len(found.prompt_token_ids) == MAX_MODEL_LEN
    assert engine.counts().generation_tokens == before
    assert llm.decide([], LABELS) == []


def test_the_likeliest_label_is_the_likeliest_next_token(llm, tokenizer):
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        (token,) = output.outputs[0].token_ids
        text = tokenizer.decode([token])
        if tokenizer.encode_following([text])[0][:1] != [token]:
            continue  # half of a character
        labels = [text, *(label for label in "abcdefgh" if label != text[:1])]
        assert llm.decide([output.prompt_token_ids], labels)[0].label == text


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ("yes", TypeError, "labels must be a list of strings"),
        (7, TypeError, "labels must be a list of strings"),
        (["a", 7], TypeError, "labels must hold strings, got 7"),
        ([], ValueError, "labels has 0 entries; a decision needs at least two"),
        (["a"], ValueError, "labels has 1 entries"),
        (["a", "b", "a"], ValueError, "labels has 'a' twice"),
        (["a", ""], ValueError, "labels strings must have 1 to"),
        (["a", "\ud800"], ValueError, r"labels\[1\] is not valid Unicode"),
        ([" yes", " no", " yellow"], ValueError, r"' yes' and ' no' begin with the same token"),
    ],
)
def test_labels_that_decide_nothing_are_refused(llm, labels, error, message):
    with pytest.raises(error, match=message):
        llm.decide(PROMPTS, labels)


def test_a_label_of_no_tokens_is_refused(llm, monkeypatch):
    tokenizer = type(llm.get_tokenizer())
    monkeypatch.setattr(tokenizer, "encode_following", lambda self, texts: [[1], []])
    with pytest.raises(ValueError, match="label 'b' begins with no token of the model"):
        llm.decide(PROMPTS, ["a", "b"])
    monkeypatch.setattr(tokenizer, "encode_following", lambda self, texts: [[1], [512]])
    with pytest.raises(ValueError, match="label 'b' begins with no token of the model"):
        llm.decide(PROMPTS, ["a", "b"])


def test_an_engine_without_text_refuses_labels():
    with small_llm() as llm, pytest.raises(ValueError, match="no tokenizer"):
        llm.decide(PROMPTS, LABELS)


def test_a_bad_prompt_is_named(llm):
    with pytest.raises(ValueError, match=r"prompts\[1\] is empty"):
        llm.decide([PROMPTS[0], []], LABELS)


def test_weights_that_give_no_number_are_an_error(tokenizer):
    params = tiny_params()
    bad = {**params, "model": {**params["model"], "norm": params["model"]["norm"] * jnp.nan}}
    with (
        small_llm(params=bad, tokenizer=tokenizer) as llm,
        pytest.raises(StepError, match="finite"),
    ):
        llm.decide(PROMPTS[:1], LABELS)
    bad = {**params, "lm_head": params["lm_head"] * jnp.nan}
    with (
        small_llm(params=bad, tokenizer=tokenizer) as llm,
        pytest.raises(StepError, match="head's weights"),
    ):
        llm.decide(PROMPTS[:1], LABELS)


def test_a_head_on_several_processes_is_refused(llm, monkeypatch):
    class Elsewhere:
        is_fully_addressable = False

    runner = llm._loaded.replicas[0].runner
    resident = runner.resident._replace(head={"model": {"norm": Elsewhere()}})
    monkeypatch.setattr(runner.launcher, "resident", resident)
    with pytest.raises(ValueError, match="several processes"):
        llm.decide(PROMPTS, LABELS)


def test_the_first_of_equal_labels_is_the_decision(llm):
    task = PoolingTask(llm._loaded.reader.read(PROMPTS[0]), (5, 5), prompt_logits)
    (found,) = run_task(llm._handle.driver, llm._handle.head, task, use_tqdm=False)
    assert decision(["x", "y"], found).label == "x"
    assert decision(["x", "y"], found).probabilities == {"x": 0.5, "y": 0.5}


def test_a_closed_engine_decides_nothing(tokenizer):
    llm = small_llm(tokenizer=tokenizer)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.decide(PROMPTS, LABELS)
    with pytest.raises(RuntimeError, match="closed"):
        llm.rerank("a", ["b"])
