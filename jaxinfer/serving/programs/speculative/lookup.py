"""Guesses the next tokens of sequences: what followed the last occurrence of their latest tokens.

This is prompt lookup (https://github.com/apoorvumang/prompt-lookup-decoding), with the longest of
all matches, and with matches in texts beside the sequence as suffix decoding has them
(arXiv:2411.04975). On the device it is some passes over a few tokens; no host is asked.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.model.layers.context import Params
from jaxinfer.serving.programs.speculative.drafter import NO_DRAFT, DraftRows, DraftState
from jaxinfer.serving.programs.steps import KVCache, StepContext

_BEYOND = 2**31 - 1  # writes to it are dropped
_NEVER = -2  # equals no token, nor what stands between texts
_MOST_BESIDE = 2048  # latest tokens of each row that the rows beside it are looked up in


@dataclass(frozen=True)
class LookupDrafter:
    """The `Drafter` that goes on as a text went on that was seen.

    Attributes:
        num_tokens: k, most drafts of a row in a step.
        longest: most tokens of a sequence's end that are looked up.
        shortest: fewest tokens that must be found for a draft.
        as_long_as_match: whether a draft has at most as many tokens as were found.
    """

    num_tokens: int
    longest: int
    shortest: int
    as_long_as_match: bool = False

    def of_length(self, num_tokens: int) -> "LookupDrafter":
        """The same with another k."""
        return replace(self, num_tokens=num_tokens)

    def draft(
        self,
        params: Params,
        kv: KVCache,
        rows: DraftRows,
        state: DraftState,
        *,
        context: StepContext,
        axis: TensorAxis | None,
    ) -> tuple[KVCache, Int32[Array, "B k"]]:
        """The pages as they are, and what `find_drafts` finds; as of `Drafter`."""
        history = state.history.at[rows.slots].get(mode="clip")
        return kv, find_drafts(history, rows.lengths, state.corpus, self)

    def remember(
        self,
        state: DraftState,
        slots: Int32[Array, " B"],
        starts: Int32[Array, " B"],
        tokens: Int32[Array, "B N"],
        counts: Int32[Array, " B"],
    ) -> DraftState:
        """Write the first `counts` tokens of each row into its slot's history, from `starts` on."""
        steps = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        places = jnp.where(steps < counts[:, None], starts[:, None] + steps, _BEYOND)
        history = state.history.at[slots[:, None], places].set(tokens, mode="drop")
        return state._replace(history=history)


class _Match(NamedTuple):
    """The longest match of each row: its number of tokens, and the place of its last one."""

    length: Int32[Array, " B"]
    end: Int32[Array, " B"]


def find_drafts(
    history: Int32[Array, "B L"],
    lengths: Int32[Array, " B"],
    corpus: Int32[Array, " C"] | None,
    drafter: LookupDrafter,
) -> Int32[Array, "B k"]:
    """Draft the tokens that may follow each row's.

    The longest run of a row's latest tokens that occurs earlier in the row, or anywhere in the
    corpus or in the rows beside it, gives the tokens behind it; of equally long ones the last in
    the row, or else in the last of the others, or else in the corpus. A row that repeats itself up
    to its end goes on repeating itself.

    Args:
        history: each row's tokens by position.
        lengths: their numbers; 0 for padding.
        corpus: as of `DraftState`; None without, and then no row is searched for another.
        drafter: the rule; static.

    Returns:
        k drafts, with `NO_DRAFT` from the first that there is not.
    """
    latest = _latest(history, lengths, drafter.longest)
    own = _longest_match(history, lengths - 1, latest)
    steps = jnp.arange(drafter.num_tokens, dtype=jnp.int32)
    period = jnp.maximum(lengths - 1 - own.end, 1)
    places = own.end[:, None] + 1 + steps % period[:, None]
    drafts = jnp.take_along_axis(history, places, axis=1, mode="clip")
    found = own.length
    if corpus is not None:
        for text, part in _others(history, lengths, corpus):
            other = _longest_match(text[None], jnp.full_like(lengths, text.shape[0]), latest, part)
            behind = text.at[other.end[:, None] + 1 + steps].get(mode="fill", fill_value=NO_DRAFT)
            drafts = jnp.where((other.length > found)[:, None], behind, drafts)
            found = jnp.maximum(found, other.length)
    most = jnp.where(found >= drafter.shortest, drafter.num_tokens, 0)
    if drafter.as_long_as_match:
        most = jnp.minimum(most, found)
    is_draft = (steps < most[:, None]) & (drafts >= 0)
    return jnp.where(jnp.cumprod(is_draft, axis=1, dtype=jnp.int32) > 0, drafts, NO_DRAFT)


def _others(
    history: Int32[Array, "B L"], lengths: Int32[Array, " B"], corpus: Int32[Array, " C"]
) -> list[tuple[Int32[Array, " M"], int]]:
    """Texts that all rows are looked up in, with `NO_DRAFT` where there is no token.

    They are the latest tokens of all rows, if there are several, and the corpus. Beside each is the
    length of the parts of it that are one row's each, which that row isn't looked up in; 0 without.
    """
    B, L = history.shape
    if B == 1:
        return [(corpus - 1, 0)]
    W = min(L, _MOST_BESIDE)
    places = jnp.maximum(lengths - W, 0)[:, None] + jnp.arange(W, dtype=jnp.int32)
    known = jnp.take_along_axis(history, places, axis=1, mode="clip")
    known = jnp.where(places < lengths[:, None], known, NO_DRAFT)
    beside = jnp.pad(known, ((0, 0), (1, 0)), constant_values=NO_DRAFT)  # none goes on as the next
    return [(beside.reshape(-1), W + 1), (corpus - 1, 0)]


def _latest(
    history: Int32[Array, "B L"], lengths: Int32[Array, " B"], count: int
) -> Int32[Array, "B n"]:
    """Each row's last tokens, the last one first; `_NEVER` where a row has fewer."""
    places = lengths[:, None] - 1 - jnp.arange(count, dtype=jnp.int32)
    tokens = jnp.take_along_axis(history, jnp.maximum(places, 0), axis=1, mode="clip")
    return jnp.where(places >= 0, tokens, _NEVER)


def _longest_match(
    texts: Int32[Array, "_ L"],
    stops: Int32[Array, " B"],
    latest: Int32[Array, "B n"],
    part: int = 0,
) -> _Match:
    """Where texts before `stops` end on most of the rows' latest tokens, and go on.

    Args:
        texts: one for each row, or one for all.
        stops: a match ends before this place.
        latest: see `_latest`.
        part: length of the parts of the text that are one row's each, which has no match in it.
    """
    size, (rows, count) = texts.shape[1], latest.shape
    padded = jnp.pad(texts, ((0, 0), (count - 1, 0)), constant_values=NO_DRAFT)
    goes_on = jnp.ones((rows, size), jnp.bool_)
    length = jnp.zeros_like(goes_on, jnp.int32)
    for back in range(count):
        start = count - 1 - back
        goes_on &= padded[:, start : start + size] == latest[:, back, None]
        length += goes_on.astype(jnp.int32)
    places = jnp.arange(size, dtype=jnp.int32)
    following = jnp.pad(texts[:, 1:], ((0, 0), (0, 1)), constant_values=NO_DRAFT)
    counts = (places < stops[:, None]) & (following >= 0)
    if part:
        counts &= places // part != jnp.arange(rows, dtype=jnp.int32)[:, None]
    # The place breaks ties: the last of the longest.
    ranked = jnp.where(counts, length * size + places, 0)
    best = ranked.max(axis=1)
    return _Match(best // size, best % size)
