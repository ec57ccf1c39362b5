"""Loads a draft head's weights onto devices, each of which holds all of them; and saves a head."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.checkpoint.safetensors_file import write_file
from jaxinfer.model.checkpoint.weight_files import SINGLE_FILE
from jaxinfer.model.checkpoint.weights import read_leaves
from jaxinfer.model.draft_head.files import OFFSETS, DraftHead, head_shapes
from jaxinfer.model.draft_head.head_config import HeadConfig

DRAFT_HEAD = "draft_head"
"""The head's part of a tree of parameters."""
_TOKEN_IDS = "token_ids"


def load_draft_head(head: DraftHead, dtype: DTypeLike, mesh: Mesh | None = None) -> dict[str, Any]:
    """The tree of `describe_head`, with arrays.

    Args:
        head: from `read_draft_head`.
        dtype: of all but the tokens' ids.
        mesh: every device of it gets the whole; JAX's default device if None.

    Raises:
        ModelLoadError: a tensor holds NaN or infinity; names it.
    """
    described = describe_head(head.config, dtype, mesh, own=head.own)
    leaves = dict(flatten(described))
    ids = leaves.pop(_TOKEN_IDS)
    loaded = read_leaves(head.plan, leaves, head.entries)
    loaded[_TOKEN_IDS] = jax.device_put(head.token_ids(), ids.sharding)
    return unflatten(loaded)


def describe_head(
    config: HeadConfig,
    dtype: DTypeLike,
    mesh: Mesh | None = None,
    *,
    own: Collection[str] = (),
) -> dict[str, Any]:
    """Shapes, dtypes and placement of a head's parameters, without memory.

    Args:
        config: its shape.
        dtype: of all but the tokens' ids.
        mesh: with a mesh every leaf is whole on each of its devices.
        own: as of `head_shapes`.

    Returns:
        A tree of ``jax.ShapeDtypeStruct``. `token_ids` are the model's ids of the head's tokens,
        int32 ``[Vd]``.
    """
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    leaves = {
        path: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)
        for path, shape in head_shapes(config, own).items()
    }
    ids = jax.ShapeDtypeStruct((config.draft_vocab_size,), jnp.int32, sharding=sharding)
    return unflatten({**leaves, _TOKEN_IDS: ids})


def save_draft_head(params: Mapping[str, Any], config: HeadConfig, directory: Path) -> None:
    """Write config.json and safetensors, under the published names.

    Args:
        params: the tree of `describe_head`.
        config: its shape; its `layer.dtype` is only written down.
        directory: made if it does not exist.
    """
    directory.mkdir(parents=True, exist_ok=True)
    leaves = dict(flatten(jax.device_get(dict(params))))
    ids = np.asarray(leaves.pop(_TOKEN_IDS), np.int64)
    tensors = {config.file_name(path): leaf for path, leaf in leaves.items()}
    tensors[OFFSETS] = ids - np.arange(len(ids))
    write_file(directory / SINGLE_FILE, tensors.items(), tensors)
    text = json.dumps(config.to_hf(), indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
