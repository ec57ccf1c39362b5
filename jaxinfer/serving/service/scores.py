"""Packs log-probabilities into messages for front ends, arrays as bytes, and unpacks them."""

import dataclasses
from typing import Any

import numpy as np

from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.token_group import RowScores, ScoreSlice
from jaxinfer.serving.service.messages import PromptScores, ScorePlace, Scores


@dataclasses.dataclass(slots=True)
class _Block:
    """Rows of one step with the same number of likeliest tokens."""

    index: int
    scores: TokenScores
    num_top: int
    rows: list[int] = dataclasses.field(default_factory=list)


class ScoreBlocks:
    """Gathers the scores of a step's rows, so that each array is copied once for all of them."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def add(self, piece: RowScores) -> ScorePlace:
        """Where the scores of a row will be."""
        scores, row, count, num_top = piece
        for block in reversed(self._blocks):  # there are one or two
            if block.scores is scores and block.num_top == num_top:
                break
        else:
            block = _Block(len(self._blocks), scores, num_top)
            self._blocks.append(block)
        block.rows.append(row)
        return block.index, len(block.rows) - 1, count

    def take(self) -> list[Scores]:
        """The scores added since the last call, in the order of the blocks' indices."""
        blocks, self._blocks = self._blocks, []
        return [_pack(block.scores, (block.rows,), block.num_top) for block in blocks]


def pack_prompt_scores(start: int, piece: ScoreSlice) -> PromptScores:
    """Scores of a chunk of a prompt that begins at position `start`."""
    return PromptScores(start, _pack(*piece))


def unpack_scores(packed: Scores) -> TokenScores:
    """Scores as they were packed; tokens that were not valid are not sent.

    Raises:
        ValueError: the arrays do not belong together.
    """
    shape = tuple(packed.shape)

    def unpacked(data: bytes, dtype: type, *more: int) -> np.ndarray:
        return np.frombuffer(data, dtype).reshape(*shape, *more)

    return TokenScores(
        tokens=unpacked(packed.tokens, np.int32),
        ok=np.ones(shape, bool),
        logprobs=unpacked(packed.logprobs, np.float32),
        ranks=unpacked(packed.ranks, np.int32) if packed.ranks else None,
        top_ids=unpacked(packed.top_ids, np.int32, -1) if packed.top_ids else None,
        top_logprobs=unpacked(packed.top_logprobs, np.float32, -1) if packed.top_ids else None,
    )


def _pack(scores: TokenScores, place: tuple[Any, ...], num_top: int) -> Scores:
    most = (*place, ..., slice(num_top))
    tokens = scores.tokens[place]
    return Scores(
        list(tokens.shape),
        tokens.tobytes(),
        _packed(scores.logprobs, place),
        _packed(scores.ranks, place),
        _packed(scores.top_ids, most) if num_top else b"",
        _packed(scores.top_logprobs, most) if num_top else b"",
    )


def _packed(array: np.ndarray | None, place: Any) -> bytes:
    return b"" if array is None else array[place].tobytes()
