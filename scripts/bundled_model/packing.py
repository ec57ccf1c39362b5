"""Packs examples of many lengths into rows of one length, in an order drawn anew each epoch."""

from collections.abc import Iterator, Sequence

import numpy as np

from scripts.bundled_model.corpus import Example

OPEN_ROWS = 32
"""Rows filled at the same time: the more, the less padding at their ends."""


def pack_epoch(
    examples: Sequence[Example], length: int, pad_id: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Packs every example whole into some row; examples longer than a row are left out.

    Args:
      examples: what to pack.
      length: tokens in a row.
      pad_id: fills the end of rows, with weight 0.
      rng: decides the order.

    Returns:
      Token ids int32 [rows, length] and weights float32 [rows, length].
    """
    done: list[list[int]] = []
    rows: list[list[int]] = [[] for _ in range(OPEN_ROWS)]
    free = np.full(OPEN_ROWS, length)
    for index in rng.permutation(len(examples)):
        size = len(examples[index].token_ids)
        if size > length:
            continue
        place = int(np.argmax(np.where(free >= size, -free, -length - 1)))
        if free[place] < size:
            place = int(np.argmin(free))
            done.append(rows[place])
            rows[place], free[place] = [], length
        rows[place].append(int(index))
        free[place] -= size
    done += [row for row in rows if row]
    return _fill(examples, done, length, pad_id)


def _fill(
    examples: Sequence[Example], rows: list[list[int]], length: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    token_ids = np.full((len(rows), length), pad_id, np.int32)
    weights = np.zeros((len(rows), length), np.float32)
    for r, row in enumerate(rows):
        ids = np.concatenate([examples[i].token_ids for i in row])
        token_ids[r, : len(ids)] = ids
        weights[r, : len(ids)] = np.concatenate([examples[i].weights for i in row])
    return token_ids, weights


def batches(
    examples: Sequence[Example], length: int, rows: int, pad_id: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of `rows` packed rows without end, epoch after epoch.

    Raises:
      ValueError: the examples don't fill one batch.
    """
    rng = np.random.default_rng(seed)
    while True:
        token_ids, weights = pack_epoch(examples, length, pad_id, rng)
        order = rng.permutation(len(token_ids))
        if len(order) < rows:
            raise ValueError(f"the text fills {len(order)} rows, a batch needs {rows}")
        for start in range(0, len(order) - rows + 1, rows):
            chosen = order[start : start + rows]
            yield token_ids[chosen], weights[chosen]
