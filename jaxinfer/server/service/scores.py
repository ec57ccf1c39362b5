"""Packs log-probabilities into messages for front ends, arrays as bytes, and unpacks them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from jaxinfer.logprobs import LogprobsAtPosition
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.server.service.messages import PromptScores, Scores, StepScores
from jaxinfer.serving.requests.completion_logprobs import logprobs_at
from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.token_group import RowScores, ScoreSlice


@dataclasses.dataclass(slots=True)
class _Block:
    """Rows of one step with the same number of likeliest tokens; fields as in `StepScores`."""

    scores: TokenScores
    num_top: int
    places: list[int] = dataclasses.field(default_factory=list)
    rows: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)


class ScoreBlocks:
    """Gathers the scores of a step's rows, so that each array is copied once for all of them."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def add(self, row: int, pieces: Sequence[RowScores]) -> None:
        """Add the scores of a message's row, an item for each step."""
        blocks, first = self._blocks, 0
        for scores, place, count, num_top in pieces:
            for index in range(first, len(blocks)):  # there are one or two
                block = blocks[index]
                if block.scores is scores and block.num_top == num_top:
                    break
            else:
                index = len(blocks)
                block = _Block(scores, num_top)
                blocks.append(block)
            first = index + 1  # a row's next step comes in a later block
            block.places.append(place)
            block.rows.append(row)
            block.counts.append(count)

    def take(self) -> list[StepScores]:
        """The scores added since the last call; those of a row in the order of its steps."""
        blocks, self._blocks = self._blocks, []
        return [
            StepScores(
                block.rows,
                block.counts,
                _pack(block.scores, (np.array(block.places),), block.num_top),
            )
            for block in blocks
        ]


def pack_prompt_scores(start: int, piece: ScoreSlice) -> PromptScores:
    """Scores of a chunk of a prompt that begins at position `start`."""
    return PromptScores(start, _pack(*piece))


ReceivedScores = tuple[TokenScores, int, int]
"""The scores of a row's tokens from one step: of several rows, this row's index among them, and the
number of its leading positions."""


def scores_of_rows(packed: Sequence[StepScores]) -> dict[int, list[ReceivedScores]]:
    """The scores of a message's rows, by the row's index, an item for each step.

    Raises:
        ValueError: the arrays do not belong together.
    """
    found: dict[int, list[ReceivedScores]] = {}
    for each in packed:
        scores = unpack_scores(each.scores)
        for place, (row, count) in enumerate(zip(each.rows, each.counts, strict=True)):
            found.setdefault(row, []).append((scores, place, count))
    return found


class PromptLogprobs(Sequence[LogprobsAtPosition | None]):
    """The log-probabilities of a prompt received so far; behaves like a list of them.

    Their dictionaries are made on access, as there may be millions of objects. It becomes a list
    when it is pickled or copied.
    """

    def __init__(self, length: int, count: int, tokenizer: Tokenizer | None) -> None:
        self._count = count
        self._tokenizer = tokenizer
        self._pieces: list[TokenScores] = []
        self._piece_of = np.full(length, -1, np.int32)
        self._place_in = np.zeros(length, np.int32)

    def add(self, start: int, scores: TokenScores) -> None:
        """Add the scores of a chunk, whose first token is at `start` and predicts the next."""
        places = self._place_in[start + 1 : start + 1 + len(scores.tokens)]
        places[:] = np.arange(len(places))
        self._piece_of[start + 1 : start + 1 + len(scores.tokens)] = len(self._pieces)
        self._pieces.append(scores)

    def __len__(self) -> int:
        return len(self._piece_of)

    @overload
    def __getitem__(self, index: int) -> LogprobsAtPosition | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogprobsAtPosition | None]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        piece = self._piece_of[index]
        if piece < 0:
            return None
        place = (int(self._place_in[index]),)
        return logprobs_at(self._pieces[piece], place, self._count, self._tokenizer)

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, (PromptLogprobs, list)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type[list], tuple[list[LogprobsAtPosition | None]]]:
        return list, (list(self),)


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
