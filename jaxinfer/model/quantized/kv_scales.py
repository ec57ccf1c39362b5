"""Scales of another engine's KV cache in a checkpoint: no weights, and not read here."""

import logging
from collections.abc import Mapping

from jaxinfer.model.checkpoint.safetensors_file import TensorEntry

_NAMES = ("k_scale", "v_scale", "kv_scale")
logger = logging.getLogger("jaxinfer")


def without_kv_scales(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The files' headers without KV scales; a logged line says that there were some.

    They say how values of a cache in fp8 were to be stored. Here the cache has the dtype of
    activations, or `kv_cache_dtype` quantizes by scales of its own ("int8") or by none ("fp8").
    """
    others = {name: each for name, each in entries.items() if name.rpartition(".")[2] not in _NAMES}
    if count := len(entries) - len(others):
        first = next(name for name in entries if name not in others)
        logger.warning(
            '%s: %d KV scales (%s, ...) are not used: kv_cache_dtype="int8" has a scale for each '
            'token and head, "fp8" none',
            *(entries[first].file, count, first),
        )
    return others
