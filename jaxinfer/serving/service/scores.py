"""Log-probabilities on their way to a front end: arrays as bytes, and back."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.requests.token_group import ScoreSlice
from jaxinfer.serving.service.messages import Scores


def pack_scores(piece: ScoreSlice, start: int = 0) -> Scores:
    """Scores of some tokens, as a message has them."""
    scores, place, num_top = piece
    most = (*place, slice(num_top))
    return Scores(
        start,
        _packed(scores.logprobs, place),
        _packed(scores.ranks, place),
        _packed(scores.top_ids, most) if num_top else b"",
        _packed(scores.top_logprobs, most) if num_top else b"",
    )


def unpack_scores(packed: Scores, token_ids: Sequence[int], *, as_row: bool) -> TokenScores:
    """The scores of `token_ids`, in their order.

    Args:
        packed: from `pack_scores`.
        token_ids: as many tokens as there are log-probabilities, or more.
        as_row: whether they lead with a dimension of 1, as those of a step's rows do.

    Raises:
        ValueError: the arrays do not belong together.
    """
    logprobs = np.frombuffer(packed.logprobs, np.float32)
    count = len(logprobs)
    if len(token_ids) < count:
        raise ValueError(f"{count} log-probabilities of {len(token_ids)} tokens")
    shape = (1, count) if as_row else (count,)

    def unpacked(data: bytes, dtype: type, *more: int) -> np.ndarray | None:
        return np.frombuffer(data, dtype).reshape(*shape, *more) if data else None

    return TokenScores(
        tokens=np.array(token_ids[:count], np.int32).reshape(shape),
        ok=np.ones(shape, bool),
        logprobs=logprobs.reshape(shape),
        ranks=unpacked(packed.ranks, np.int32),
        top_ids=unpacked(packed.top_ids, np.int32, -1),
        top_logprobs=unpacked(packed.top_logprobs, np.float32, -1),
    )


def num_scored(packed: Scores) -> int:
    """How many tokens the scores are of."""
    return len(packed.logprobs) // np.dtype(np.float32).itemsize


def _packed(array: np.ndarray | None, place: tuple[int | slice, ...]) -> bytes:
    return b"" if array is None else array[place].tobytes()
