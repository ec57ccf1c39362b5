"""Log-probabilities gathered for a front end: each row finds its own, whatever else is sent."""

import copy
import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.logprobs import Logprob
from jaxinfer.server.service import scores as scores_module
from jaxinfer.server.service.messages import PromptScores, Step, decode_to_front_end, encode
from jaxinfer.server.service.scores import (
    PromptLogprobs,
    ScoreBlocks,
    pack_prompt_scores,
    scores_of_rows,
    unpack_scores,
)
from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.result import unpack_scores as split
from jaxinfer.serving.requests.token_group import ScoreSlice

ROWS, POSITIONS, TOP = 5, 3, 4
COLUMNS = 4 + 2 * TOP


def step_scores(seed, columns=COLUMNS):
    """A step's scores, views of one array as a runner gives them; of random numbers."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(1, 1 << 20, (ROWS, POSITIONS, columns), dtype=np.int32)
    return split(packed)


row_scores = st.tuples(
    st.integers(0, 1), st.integers(0, ROWS - 1), st.integers(1, POSITIONS), st.integers(0, TOP)
)


@given(rows=st.lists(st.lists(row_scores, max_size=3), max_size=10))
def test_each_row_gets_its_own_scores_in_the_order_of_its_steps(rows):
    steps = [step_scores(0), step_scores(1)]
    blocks = ScoreBlocks()
    for number, pieces in enumerate(rows):
        blocks.add(number, [(steps[step], *rest) for step, *rest in pieces])
    sent = decode_to_front_end(encode(Step(0.0, [], blocks.take()))[4:])
    received = scores_of_rows(sent.scores)
    assert sorted(received) == [number for number, pieces in enumerate(rows) if pieces]
    for number, own in received.items():
        for (step, row, count, num_top), (got, place, got_count) in zip(
            rows[number], own, strict=True
        ):
            assert got_count == count
            for name in ("tokens", "logprobs", "ranks"):
                wanted = getattr(steps[step], name)[row]
                np.testing.assert_array_equal(getattr(got, name)[place], wanted)
            for name in ("top_ids", "top_logprobs"):
                if num_top:
                    wanted = getattr(steps[step], name)[row, :, :num_top]
                    np.testing.assert_array_equal(getattr(got, name)[place], wanted)
                else:
                    assert getattr(got, name) is None
    assert blocks.take() == []


def test_rows_of_a_step_with_as_many_likeliest_tokens_are_sent_together():
    steps = [step_scores(0), step_scores(1)]
    blocks = ScoreBlocks()
    for row in range(ROWS):
        blocks.add(row, [(steps[0], row, 1, row % 2), (steps[1], row, 1, row % 2)])
    assert [each.rows for each in blocks.take()] == [[0, 2, 4], [0, 2, 4], [1, 3], [1, 3]]


def test_scores_without_ranks_have_none_afterwards():
    blocks = ScoreBlocks()
    blocks.add(0, [(step_scores(0, columns=3), 2, 1, 0)])
    (packed,) = blocks.take()
    assert unpack_scores(packed.scores).ranks is None


@given(start=st.integers(0, 100), first=st.integers(0, 2), num_top=st.integers(0, TOP))
def test_scores_of_a_prompt_arrive_as_they_were(start, first, num_top):
    scores = split(np.arange(6 * COLUMNS, dtype=np.int32).reshape(6, COLUMNS))
    sent = pack_prompt_scores(start, ScoreSlice(scores, (slice(first, 6),), num_top))
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=PromptScores)
    got = unpack_scores(received.scores)
    assert received.start == start
    np.testing.assert_array_equal(got.tokens, scores.tokens[first:])
    np.testing.assert_array_equal(got.logprobs, scores.logprobs[first:])
    if num_top:
        np.testing.assert_array_equal(got.top_ids, scores.top_ids[first:, :num_top])


def prompt_scores(tokens):
    """The scores of a chunk in which each token is the likeliest but one."""
    ids = np.asarray(tokens, np.int32)
    return TokenScores(
        tokens=ids,
        ok=np.ones(len(ids), bool),
        logprobs=-ids.astype(np.float32),
        ranks=np.full(len(ids), 2, np.int32),
        top_ids=np.stack([ids + 1, ids], axis=1),
        top_logprobs=np.stack([-ids - 0.5, -ids - 1.0], axis=1).astype(np.float32),
    )


def test_the_log_probabilities_of_a_prompt_are_as_a_list_of_them():
    """Of chunks in any order, one of which came twice, and one that ends beyond the prompt."""
    scores = PromptLogprobs(6, 2, None)
    assert list(scores) == [None] * 6
    scores.add(2, prompt_scores([90, 91]))
    scores.add(0, prompt_scores([11, 12]))
    scores.add(2, prompt_scores([13, 14, 15, 16, 17]))
    expected = [
        None,
        *({t: Logprob(-float(t), 2), t + 1: Logprob(-t - 0.5, 1)} for t in (11, 12, 13, 14, 15)),
    ]
    assert scores == expected
    assert expected == scores
    assert len(scores) == 6
    assert scores[-1] == expected[-1]
    assert scores[1:3] == expected[1:3]
    assert repr(scores) == repr(expected)
    assert type(pickle.loads(pickle.dumps(scores))) is list
    assert copy.deepcopy(scores) == expected
    with pytest.raises(IndexError):
        scores[6]


def test_the_log_probabilities_of_a_prompt_are_made_when_they_are_read(monkeypatch):
    made = []
    monkeypatch.setattr(scores_module, "logprobs_at", lambda *given: made.append(given))
    scores = PromptLogprobs(100, 2, None)
    scores.add(0, prompt_scores(range(100)))
    assert not made
    list(scores)
    assert len(made) == 99
