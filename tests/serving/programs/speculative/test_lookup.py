"""Drafts are what followed the last of the longest matches; a plain search in Python agrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.programs.speculative import lookup
from jaxinfer.serving.programs.speculative.lookup import LookupDrafter, find_drafts

LENGTH, CORPUS = 24, 16
_find = jax.jit(find_drafts, static_argnames="drafter")


def drafts_of(texts, drafter, corpus=None):
    """Drafts of rows of tokens, without what there is not; garbage lies behind each row's end."""
    history = np.full((len(texts), LENGTH), 7, np.int32)
    for row, text in zip(history, texts, strict=True):
        row[: len(text)] = text
    lengths = np.array([len(text) for text in texts], np.int32)
    packed = None
    if corpus is not None:
        packed = jnp.asarray([*(1 + token for token in corpus), *[0] * (CORPUS - len(corpus))])
    found = np.asarray(_find(history, lengths, packed, drafter=drafter)).tolist()
    for row in found:
        assert -1 not in row[: len(row) - row.count(-1)], "drafts behind none"
    return [[token for token in row if token >= 0] for row in found]


def others_of(row, texts, corpus):
    """What a row is searched for in beside its own text."""
    if corpus is None:
        return []
    others = corpus + [-1] * (CORPUS - len(corpus))
    for other, text in enumerate(texts):
        latest = [] if other == row else text[-lookup._MOST_BESIDE :]
        others += [-1, *latest, *[-1] * (LENGTH - len(latest))]
    return others


def search(text, drafter, others):
    """The same, by trying every place."""
    best = (0, -1, None)
    for where, tokens in ((1, text), (0, others)):
        # Behind the end of a row, and of all others, nothing follows.
        stop = len(tokens) - 1
        for end in range(stop):
            count = 0
            if tokens[end + 1] < 0:
                continue
            while (
                count < min(drafter.longest, end + 1, len(text))
                and tokens[end - count] == text[-1 - count]
                and tokens[end - count] >= 0
            ):
                count += 1
            if count and (count, where, end) > (best[0], best[1], best[2] or 0):
                best = (count, where, end)
    count, where, end = best
    if count < max(drafter.shortest, 1) or end is None:
        return []
    most = min(drafter.num_tokens, count) if drafter.as_long_as_match else drafter.num_tokens
    if where == 1:
        period = len(text) - 1 - end
        return [text[end + 1 + i % period] for i in range(most)]
    following = (others + [-1] * LENGTH)[end + 1 : end + 1 + most]
    return following[: following.index(-1)] if -1 in following else following


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),
        ([1, 2, 9, 3, 2, 8, 1, 2], [9, 3, 2, 8]),  # the longest match, not the last
        ([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2, 6]),  # of equally long ones the last
        ([4, 4, 4], [4, 4, 4, 4]),
        ([1, 2, 3], []),
        ([1], []),
        ([], []),
    ],
)
def test_what_followed_is_drafted(text, drafts):
    assert drafts_of([text], LookupDrafter(4, longest=5, shortest=1)) == [drafts]


def test_a_match_shorter_than_the_shortest_is_none():
    texts = [[1, 2, 3, 9, 2, 3], [5, 1, 2, 3, 9, 1, 2, 3]]
    assert drafts_of(texts, LookupDrafter(2, longest=5, shortest=3)) == [[], [9, 1]]


def test_a_draft_is_as_long_as_its_match_where_the_rule_says_so():
    drafter = LookupDrafter(4, longest=5, shortest=1, as_long_as_match=True)
    assert drafts_of([[3, 8, 9, 7, 3], [2, 3, 8, 9, 2, 3]], drafter) == [[8], [8, 9]]


def test_a_longer_match_in_the_corpus_wins_and_its_text_ends_the_draft():
    drafter = LookupDrafter(4, longest=5, shortest=1)
    corpus = [5, 6, 7, 8, 9, -1, 1, 6, 2, -1]
    assert drafts_of([[6, 3, 5, 6], [1, 6, 3, 1, 6], [9]], drafter, corpus) == [
        [7, 8, 9],
        [3, 1, 6, 3],
        [],
    ]


def test_rows_draft_from_each_other_where_there_is_a_corpus(monkeypatch):
    drafter, texts = LookupDrafter(4, longest=5, shortest=1), [[9, 1, 2, 3, 4], [7, 7, 1, 2]]
    assert drafts_of(texts, drafter, []) == [[], [3, 4]]
    assert drafts_of(texts, drafter) == [[], []]
    monkeypatch.setattr(lookup, "_MOST_BESIDE", 2)
    jax.clear_caches()
    assert drafts_of(texts, drafter, []) == [[], []]


def test_a_match_behind_which_nothing_follows_is_none():
    drafter, texts = LookupDrafter(4, longest=5, shortest=1), [[1, 2, 3], [9, 1, 2, 3]]
    assert drafts_of(texts, drafter, [2, 3, 5, 6]) == [[5, 6], [5, 6]]


tokens = st.integers(0, 3)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(tokens, max_size=LENGTH), min_size=3, max_size=3),
    corpus=st.none() | st.lists(st.integers(-1, 3), max_size=CORPUS),
    drafter=st.sampled_from(
        [
            LookupDrafter(4, 3, 1),
            LookupDrafter(2, 5, 2),
            LookupDrafter(6, 4, 1, as_long_as_match=True),
        ]
    ),
)
def test_a_search_of_every_place_finds_the_same(texts, corpus, drafter):
    expected = [
        search(text, drafter, others_of(row, texts, corpus)) for row, text in enumerate(texts)
    ]
    assert drafts_of(texts, drafter, corpus) == expected
