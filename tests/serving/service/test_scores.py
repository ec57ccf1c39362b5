"""Log-probabilities gathered for a front end: each row finds its own, whatever else is sent."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.requests.result import unpack_scores as split
from jaxinfer.serving.requests.token_group import ScoreSlice
from jaxinfer.serving.service.messages import PromptScores, Step, decode_to_front_end, encode
from jaxinfer.serving.service.scores import ScoreBlocks, pack_prompt_scores, unpack_scores

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


@given(pieces=st.lists(row_scores, max_size=20))
def test_each_row_gets_its_own_scores(pieces):
    steps = [step_scores(0), step_scores(1)]
    blocks = ScoreBlocks()
    places = [blocks.add((steps[step], *rest)) for step, *rest in pieces]
    sent = decode_to_front_end(encode(Step(0.0, [], blocks.take()))[4:])
    received = [unpack_scores(each) for each in sent.scores]
    assert len(received) <= len({(step, num_top) for step, _, _, num_top in pieces})
    for (step, row, count, num_top), (block, index, sent_count) in zip(pieces, places, strict=True):
        own, got = steps[step], received[block]
        assert sent_count == count
        for name in ("tokens", "logprobs", "ranks"):
            np.testing.assert_array_equal(getattr(got, name)[index], getattr(own, name)[row])
        for name in ("top_ids", "top_logprobs"):
            if num_top:
                wanted = getattr(own, name)[row, :, :num_top]
                np.testing.assert_array_equal(getattr(got, name)[index], wanted)
            else:
                assert getattr(got, name) is None
    assert blocks.take() == []


def test_scores_without_ranks_have_none_afterwards():
    blocks = ScoreBlocks()
    blocks.add((step_scores(0, columns=3), 2, 1, 0))
    (packed,) = blocks.take()
    assert unpack_scores(packed).ranks is None


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
