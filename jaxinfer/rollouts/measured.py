"""What was measured of the tokens of completions, as arrays of rollouts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.logprobs import Support
from jaxinfer.outputs import CompletionOutput
from jaxinfer.sampling_params import SamplingParams


def measured_arrays(
    rows: Sequence[CompletionOutput], mask: np.ndarray, params: SamplingParams
) -> dict[str, np.ndarray]:
    """The fields of `Rollouts` that its requests asked for, by name.

    Args:
        rows: completions; a mask's row without tokens stands for one that failed.
        mask: bool ``[R, C]``, True at the tokens of each.
        params: of the requests.
    """
    arrays: dict[str, np.ndarray] = {}
    whole = [row for row, kept in zip(rows, mask.any(axis=1), strict=True) if kept]
    if params.entropy:
        arrays["entropies"] = _filled(mask, [e for row in whole for e in row.entropies or ()])
    if params.support is None:
        return arrays
    supports = [support for row in whole for support in row.supports or ()]
    arrays["log_masses"] = _filled(mask, [support.log_mass for support in supports])
    arrays["support_sizes"] = _filled(mask, [each.num_tokens for each in supports], np.int32)
    if params.support:
        arrays["support_ids"] = _ids(mask, supports, params.support)
    return arrays


def _filled(mask: np.ndarray, values: Sequence[Any], dtype: Any = np.float32) -> np.ndarray:
    array = np.zeros(mask.shape, dtype)
    array[mask] = values
    return array


def _ids(mask: np.ndarray, supports: Sequence[Support], most: int) -> np.ndarray:
    """Int32 ``[R, C, N]``, -1 for padding."""
    ids = np.full((*mask.shape, most), -1, np.int32)
    packed = np.full((len(supports), most), -1, np.int32)
    for row, support in zip(packed, supports, strict=True):
        row[: len(support.token_ids)] = support.token_ids
    ids[mask] = packed
    return ids
