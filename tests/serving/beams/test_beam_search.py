"""Beam search: equal to transformers', to vLLM's rule step by step, and to trying every output."""

import itertools
import math

import numpy as np
import pytest

from jaxinfer import LLM, BeamSearchParams, StepError
from jaxinfer.logprobs import Logprob
from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.serving.beams.beam_search import search_beams
from jaxinfer.serving.requests.prompts import PromptReader
from tests.lazy import torch
from tests.model import small_models
from tests.serving.small_llm import SETTINGS, reference_logprobs, small_llm

VOCABULARY = 12
ENDS = (2, 5)
PROMPTS = [[1, 3, 7], [4], [9, 8, 0, 6, 11]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("beams")
    return directory, small_models.save(
        directory, seed=4, vocab_size=VOCABULARY, eos_token_id=list(ENDS), initializer_range=0.1
    )


@pytest.fixture(scope="module")
def llm(model):
    options = SETTINGS | {"skip_tokenizer_init": True, "max_logprobs": -1, "dtype": "float32"}
    with LLM(str(model[0]), **options) as llm:
        yield llm


@pytest.fixture(scope="module")
def logprobs(model):
    """Tokens -> log-probabilities `[V]` of the next one, by transformers."""
    found = {}

    def of(tokens):
        tokens = tuple(tokens)
        if tokens not in found:
            with torch.no_grad():
                logits = model[1](torch.tensor([tokens])).logits[0, -1]
            found[tokens] = torch.log_softmax(logits.double(), -1).tolist()
        return found[tokens]

    return of


def _search(llm, params, prompts=PROMPTS):
    return [output.sequences for output in llm.beam_search(prompts, params)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("penalty", "early_stopping"),
    [(-1.0, False), *itertools.product([0.0, 1.0, 2.0], [False, True, "never"])],
)
def test_transformers_rule_is_that_of_transformers(model, llm, penalty, early_stopping):
    params = BeamSearchParams(
        beam_width=3,
        max_tokens=9,
        length_penalty=penalty,
        score_rule="transformers",
        early_stopping=early_stopping,
    )
    reasons = set()
    for prompt, sequences in zip(PROMPTS, _search(llm, params), strict=True):
        expected = model[1].generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=3,
            num_return_sequences=3,
            max_new_tokens=9,
            length_penalty=penalty,
            early_stopping=early_stopping,
            do_sample=False,
            eos_token_id=list(ENDS),
            pad_token_id=VOCABULARY - 1,
            return_dict_in_generate=True,
            output_scores=True,
        )
        scores = [sequence.score for sequence in sequences]
        np.testing.assert_allclose(scores, expected.sequences_scores, rtol=1e-4)
        for sequence, row in zip(sequences, expected.sequences.tolist(), strict=True):
            assert sequence.tokens == row[: len(sequence.tokens)]
            assert set(row[len(sequence.tokens) :]) <= {VOCABULARY - 1}
            reasons.add(sequence.finish_reason)
    assert "stop" in reasons or penalty > 0


def _vllm_reference(logprobs, prompt, width, max_tokens, penalty, *, ignore_eos=False, ends=ENDS):
    """vLLM's loop as it is, all steps of it."""

    def score(beam):
        length = len(beam[0]) - (beam[0][-1] in ends)
        return beam[1] / length**penalty

    running, complete = [(tuple(prompt), 0.0)], []
    for _ in range(max_tokens):
        new = []
        for tokens, total in running:
            values = logprobs(tokens)
            for token in sorted(range(len(values)), key=lambda t: -values[t])[: 2 * width]:
                beam = ((*tokens, token), total + values[token])
                (complete if token in ends and not ignore_eos else new).append(beam)
        running = sorted(new, key=score, reverse=True)[:width]
    best = sorted(complete + running, key=score, reverse=True)[:width]
    return [(list(tokens), score((tokens, total))) for tokens, total in best]


@pytest.mark.slow
@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0])
def test_vllms_rule_is_that_of_vllm(llm, logprobs, penalty, ignore_eos):
    params = BeamSearchParams(3, 8, length_penalty=penalty, ignore_eos=ignore_eos)
    for prompt, sequences in zip(PROMPTS, _search(llm, params), strict=True):
        expected = _vllm_reference(logprobs, prompt, 3, 8, penalty, ignore_eos=ignore_eos)
        assert [sequence.tokens for sequence in sequences] == [tokens for tokens, _ in expected]
        scores = [sequence.score for sequence in sequences]
        np.testing.assert_allclose(scores, [value for _, value in expected], rtol=1e-4)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_an_engine_searches_after_several_prompts(mode):
    def logprobs(tokens):
        return reference_logprobs(tokens)[-1].tolist()

    with small_llm(logprobs_mode=mode) as llm:
        found = _search(llm, BeamSearchParams(2, 4))
    for prompt, sequences in zip(PROMPTS, found, strict=True):
        expected = _vllm_reference(logprobs, prompt, 2, 4, 1.0, ends=())
        assert [sequence.tokens for sequence in sequences] == [tokens for tokens, _ in expected]
        scores = [sequence.score for sequence in sequences]
        np.testing.assert_allclose(scores, [value for _, value in expected], rtol=1e-4)


def test_steps_compute_the_last_block_of_each_beam_alone(monkeypatch):
    cached = []

    def recorded(prompts, params, **options):
        outputs = generate(prompts, params, **options)
        cached.append({len(o.prompt_token_ids) - o.num_cached_tokens for o in outputs})
        return outputs

    with small_llm() as llm:
        generate = llm.generate
        monkeypatch.setattr(llm, "generate", recorded)
        llm.beam_search(list(range(1, 39)), BeamSearchParams(2, 4))
    assert cached == [{38}, {7}, {8}, {9}]


def _all_outputs(logprobs, prompt, max_tokens):
    """Every output of at most so many tokens that ends or can't go on, with its sum."""
    running, complete = [((), 0.0)], []
    for i in range(max_tokens):
        new = []
        for output, total in running:
            values = logprobs((*prompt, *output))
            for token in range(VOCABULARY):
                beam = ((*output, token), total + values[token])
                (complete if token in ENDS or i == max_tokens - 1 else new).append(beam)
        running = new
    return complete


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["vllm", "transformers"])
@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_a_search_as_wide_as_all_outputs_finds_the_best_of_all(llm, logprobs, penalty, rule):
    prompt = PROMPTS[0]
    outputs = _all_outputs(logprobs, prompt, 3)

    def score(beam):
        output, total = beam
        length = len(output)
        if rule == "vllm":
            length += len(prompt) - (output[-1] in ENDS)
        return total / length**penalty

    expected = sorted(outputs, key=score, reverse=True)[:20]
    params = BeamSearchParams(
        beam_width=len(outputs), max_tokens=3, n=20, length_penalty=penalty, score_rule=rule
    )
    ((sequences),) = _search(llm, params, [prompt])
    np.testing.assert_allclose([s.score for s in sequences], list(map(score, expected)), rtol=1e-4)
    assert [tuple(s.tokens[len(prompt) :]) for s in sequences] == [o for o, _ in expected]
    totals = [total for _, total in expected]
    np.testing.assert_allclose([s.cum_logprob for s in sequences], totals, rtol=1e-4)


class FakeModel:
    """Completes by one token: each is half as likely as the one before, whatever the prompt.

    Attributes:
        calls: prompts of each call.
    """

    def __init__(self, size=8, *, drawn=None, ranks=None):
        self.size, self.drawn = size, drawn
        self.ranks = ranks or list(range(size))
        self.calls, self.params = [], None

    def __call__(self, prompts, params):
        self.calls.append(prompts)
        self.params = params
        return [self._complete(prompt["prompt_token_ids"]) for prompt in prompts]

    def _complete(self, tokens):
        likeliest = [
            (token, Logprob(-math.log(2) * (place + 1), place + 1))
            for place, token in enumerate(self.ranks[: self.params.logprobs])
        ]
        if self.drawn is not None:
            likeliest.insert(0, (self.drawn, Logprob(0.5, self.size)))
        completion = CompletionOutput(0, "", [0], logprobs=[dict(likeliest)])
        return RequestOutput("", None, tokens, [completion])


def _fake_search(fake, params, prompts=((1, 2),), ends=(0,), **options):
    reader = PromptReader(**({"tokenizer": None, "vocab_size": 8, "max_model_len": 64} | options))
    prompts = [list(p) if isinstance(p, tuple) else p for p in prompts]
    return search_beams(fake, prompts, params, reader=reader, end_token_ids=frozenset(ends))


def test_a_sequence_has_tokens_logprobs_sum_and_reason():
    output, other = _fake_search(FakeModel(), BeamSearchParams(2, 3), [(1, 2), (3,)])
    assert output.prompt_token_ids == [1, 2]
    assert other.prompt_token_ids == [3]
    first, second = output.sequences
    assert first.tokens == [1, 2, 0]
    assert first.finish_reason == "stop"
    assert first.text is None
    assert first.cum_logprob == pytest.approx(math.log(1 / 2))
    assert first.score == pytest.approx(math.log(1 / 2) / 2)
    assert [len(position) for position in first.logprobs] == [4]
    assert second.tokens == [1, 2, 1, 0]
    assert second.cum_logprob == pytest.approx(math.log(1 / 8))


def test_n_of_the_beams_are_returned():
    (all_of_them,) = _fake_search(FakeModel(), BeamSearchParams(3, 3))
    (best,) = _fake_search(FakeModel(), BeamSearchParams(3, 3, n=1))
    assert len(all_of_them.sequences) == 3
    assert best.sequences == all_of_them.sequences[:1]


def test_outputs_that_do_not_end_have_the_reason_length():
    params = BeamSearchParams(2, 3, ignore_eos=True)
    (output,) = _fake_search(FakeModel(), params)
    assert [sequence.finish_reason for sequence in output.sequences] == ["length"] * 2
    assert [len(sequence.tokens) for sequence in output.sequences] == [5] * 2


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        # The end is likeliest, so that an output has ended in each step.
        ({"length_penalty": 0.0}, 3),
        ({"length_penalty": 0.0, "n": 1}, 1),
        ({"length_penalty": 1.0, "n": 1}, 6),
        ({"ignore_eos": True}, 20),
        ({"score_rule": "transformers", "early_stopping": True}, 2),
        ({"score_rule": "transformers", "early_stopping": "never", "length_penalty": 50.0}, 20),
    ],
)
def test_a_search_ends_when_it_is_decided(fields, steps):
    fake = FakeModel()
    _fake_search(fake, BeamSearchParams(3, 20, **fields))
    assert len(fake.calls) == steps


def test_prompts_share_each_step_and_keep_their_salts():
    fake = FakeModel()
    salted = {"prompt_token_ids": [3], "cache_salt": "s"}
    _fake_search(fake, BeamSearchParams(2, 2, ignore_eos=True), [(1, 2), salted])
    first, second = fake.calls
    assert first == [{"prompt_token_ids": [1, 2]}, salted]
    assert [len(call["prompt_token_ids"]) for call in second] == [3, 3, 2, 2]
    assert [call.get("cache_salt") for call in second] == [None, None, "s", "s"]


def test_the_drawn_token_is_no_candidate_unless_it_is_likely():
    (output,) = _fake_search(FakeModel(drawn=7), BeamSearchParams(2, 1, n=2))
    assert [sequence.tokens[-1] for sequence in output.sequences] == [0, 1]


def test_a_token_that_cannot_be_drawn_is_no_candidate():
    fake = FakeModel()
    complete = fake._complete

    def without_two(tokens):
        output = complete(tokens)
        output.outputs[0].logprobs[0][2] = Logprob(-math.inf, 3)
        return output

    fake._complete = without_two
    outputs = _fake_search(fake, BeamSearchParams(3, 3, ignore_eos=True))
    tokens = itertools.chain.from_iterable(s.tokens[2:] for s in outputs[0].sequences)
    assert 2 not in set(tokens)


class _Tokenizer:
    def decode(self, token_ids, *, skip_special_tokens):
        assert not skip_special_tokens
        return " ".join(map(str, token_ids))


@pytest.mark.parametrize(("kept", "text"), [(False, "1 2"), (True, "1 2 0")])
def test_text_is_of_prompt_and_output_and_of_the_end_if_asked_for(kept, text):
    params = BeamSearchParams(2, 3, include_stop_str_in_output=kept)
    (output,) = _fake_search(FakeModel(), params, tokenizer=_Tokenizer())
    assert output.sequences[0].text == text
    assert output.sequences[0].tokens == [1, 2, 0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (BeamSearchParams(4, 3), "beam_width 4 needs 8 log-probabilities.*lower it to 3, or.*=8$"),
        (BeamSearchParams(7, 3, score_rule="transformers"), "needs 8 .*lower it to 6, or"),
        (BeamSearchParams(2, 63), r"prompts\[0\] has 2 tokens, which leaves no room for 63 more"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_it_runs(params, message):
    fake = FakeModel()
    with pytest.raises(ValueError, match=message):
        _fake_search(fake, params, vocab_size=100, max_logprobs=7)
    assert fake.calls == []
    with pytest.raises(TypeError, match="params must be a BeamSearchParams, got dict"):
        _fake_search(fake, {"beam_width": 2})


def test_no_more_candidates_are_asked_for_than_there_are_tokens():
    fake = FakeModel()
    _fake_search(fake, BeamSearchParams(100, 1), max_logprobs=8)
    assert fake.params.logprobs == 8


def test_a_request_that_fails_fails_the_search():
    fake = FakeModel()
    complete = fake._complete

    def failing(tokens):
        output = complete(tokens)
        if len(tokens) == 2:
            output.error, output.outputs[0].logprobs = "not finite", None
        return output

    fake._complete = failing
    with pytest.raises(StepError, match=r"beam search after prompts\[1\] failed: not finite"):
        _fake_search(fake, BeamSearchParams(2, 2), [(3,), (1, 2)])


def test_a_bar_counts_steps():
    counted = []

    class Bar:
        def __init__(self, *, total, desc):
            counted.append((total, desc))

        def update(self, n):
            counted.append(n)

        def set_postfix_str(self, *_, **__):
            pass

        def close(self):
            counted.append("closed")

    reader = PromptReader(tokenizer=None, vocab_size=8, max_model_len=64)
    params = BeamSearchParams(2, 2, ignore_eos=True)
    search_beams(FakeModel(), [[1]], params, reader=reader, end_token_ids=frozenset(), use_tqdm=Bar)
    assert counted == [(2, "Beam search"), 1, 1, "closed"]
