"""Log-probabilities on their way to a front end: arrays as bytes, and back."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.serving.requests.result import TokenScores
from jaxinfer.serving.service.messages import Scores


def pack_scores(scores: TokenScores, start: int = 0) -> Scores:
    """Scores ``[count]`` that have log-probabilities, as a message has them."""
    if scores.logprobs is None:
        raise ValueError("scores without log-probabilities are not sent")
    return Scores(
        start,
        scores.logprobs.astype(np.float32, copy=False).tobytes(),
        _packed(scores.ranks, np.int32),
        _packed(scores.top_ids, np.int32),
        _packed(scores.top_logprobs, np.float32),
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


def _packed(array: np.ndarray | None, dtype: type) -> bytes:
    return b"" if array is None else array.astype(dtype, copy=False).tobytes()
