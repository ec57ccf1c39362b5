"""Loads a draft head's weights onto devices, each of which holds all of them; and saves a head."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name, unflatten
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry, write_file
from jaxinfer.model.checkpoint.source_plan import Source, SourcePlan, Tensor, check_plan
from jaxinfer.model.checkpoint.weight_files import SINGLE_FILE, tensor_entries
from jaxinfer.model.checkpoint.weights import read_leaves
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.config import DraftHeadConfig, read_draft_head_config

DRAFT_HEAD = "draft_head"
"""The head's part of a tree of parameters."""
_TOKEN_IDS, _OFFSETS = "token_ids", "d2t"
_EMBEDDING = "embed_tokens"
_LAYERS = ("midlayer.", "layers.0.")
_UNUSED = ("t2d",)


@dataclasses.dataclass(frozen=True)
class DraftHead:
    """A draft head in files that have been checked against the model.

    Attributes:
        config: its shape.
        directory: of its files.
        entries: of the tensors that it is made of.
        has_embedding: whether it has an embedding of its own, and does not read the model's.
    """

    config: DraftHeadConfig
    directory: Path
    entries: Mapping[str, TensorEntry]
    has_embedding: bool

    def load(self, dtype: DTypeLike, mesh: Mesh | None = None) -> dict[str, Any]:
        """Its tree of parameters: as of `describe_head`, with arrays.

        Args:
            dtype: of all but the tokens' ids.
            mesh: every device of it gets the whole; JAX's default device if None.

        Raises:
            ModelLoadError: a tensor holds NaN or infinity, or ids of no token.
        """
        described = describe_head(self.config, dtype, mesh, has_embedding=self.has_embedding)
        token_ids = self._token_ids()
        leaves = dict(flatten(described))
        ids = leaves.pop(_TOKEN_IDS)
        plan = _plan(leaves, self.entries)
        loaded = read_leaves(plan, leaves, self.entries)
        loaded[_TOKEN_IDS] = jax.device_put(token_ids, ids.sharding)
        return unflatten(loaded)

    def _token_ids(self) -> np.ndarray:
        ids = np.arange(self.config.draft_vocab_size, dtype=np.int64)
        if _OFFSETS in self.entries:
            entry = self.entries[_OFFSETS]
            ids += entry.mapped()
            foreign = ids[(ids < 0) | (ids >= self.config.layer.vocab_size)]
            if len(foreign):
                raise ModelLoadError(
                    f"{entry.file}: {_OFFSETS} names token {foreign[0]}, and the model has "
                    f"{self.config.layer.vocab_size}: a head for another model"
                )
        return ids.astype(np.int32)


def read_draft_head(directory: Path, model: ModelConfig) -> DraftHead:
    """Read the head in a directory as far as its files' headers, and check them.

    Args:
        directory: holds config.json and safetensors.
        model: the one that it is to draft for.

    Raises:
        ModelLoadError: a file is missing or damaged, the head can't be run, or is for another
            model; one line that names the file.
    """
    config = read_draft_head_config(directory, model)
    entries = {
        name.removeprefix("model."): entry
        for name, entry in tensor_entries(directory).items()
        if name not in _UNUSED
    }
    has_embedding = f"{_EMBEDDING}.weight" in entries
    described = describe_head(config, "float32", has_embedding=has_embedding)
    plan = _plan({name: leaf for name, leaf in flatten(described) if name != _TOKEN_IDS}, entries)
    size = config.draft_vocab_size
    if size != config.layer.vocab_size or _OFFSETS in entries:
        tensor = Tensor(_OFFSETS, (size,), ("int64", "int32"))
        plan[_TOKEN_IDS] = Source((tensor,))
    if "lm_head.weight" not in entries:  # else the error would speak of models without one
        raise ModelLoadError(f"{directory}: a draft head needs a tensor 'lm_head.weight'")
    check_plan(plan, entries, directory)
    return DraftHead(config, directory, entries, has_embedding)


def describe_head(
    config: DraftHeadConfig,
    dtype: DTypeLike,
    mesh: Mesh | None = None,
    *,
    has_embedding: bool = False,
) -> dict[str, Any]:
    """Shapes, dtypes and placement of a head's parameters, without memory.

    Args:
        config: its shape.
        dtype: of all but the tokens' ids.
        mesh: with a mesh every leaf is whole on each of its devices.
        has_embedding: whether it has an embedding of its own.

    Returns:
        A tree of ``jax.ShapeDtypeStruct``. `token_ids` are the model's ids of the head's tokens,
        int32 ``[Vd]``.
    """
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    layer, V = config.layer, config.draft_vocab_size
    E, F, D = layer.hidden_size, layer.intermediate_size, layer.head_dim
    H, K = layer.num_attention_heads, layer.num_key_value_heads

    def leaf(*shape: int, of: DTypeLike = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(of), sharding=sharding)

    return {
        "fc": leaf(E, 3 * E),
        "layer": {
            "hidden_norm": leaf(E),
            "input_layernorm": leaf(E),
            "mlp": {"down_proj": leaf(E, F), "gate_proj": leaf(F, E), "up_proj": leaf(F, E)},
            "post_attention_layernorm": leaf(E),
            "self_attn": {
                "k_proj": leaf(K * D, 2 * E),
                "o_proj": leaf(E, H * D),
                "q_proj": leaf(H * D, 2 * E),
                "v_proj": leaf(K * D, 2 * E),
            },
        },
        "lm_head": leaf(V, E),
        "norm": leaf(E),
        _TOKEN_IDS: leaf(V, of=jnp.int32),
        **({_EMBEDDING: leaf(layer.vocab_size, E)} if has_embedding else {}),
    }


def save_draft_head(params: Mapping[str, Any], config: DraftHeadConfig, directory: Path) -> None:
    """Write config.json and safetensors, under the published names.

    Args:
        params: the tree of `describe_head`.
        config: its shape; its `layer.dtype` is only written down.
        directory: made if it does not exist.
    """
    directory.mkdir(parents=True, exist_ok=True)
    leaves = dict(flatten(jax.device_get(dict(params))))
    ids = np.asarray(leaves.pop(_TOKEN_IDS), np.int64)
    tensors = {_file_name(path, _LAYERS[0]): leaf for path, leaf in leaves.items()}
    tensors[_OFFSETS] = ids - np.arange(len(ids))
    write_file(directory / SINGLE_FILE, tensors.items(), tensors)
    text = json.dumps(config.to_hf(), indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


def _plan(leaves: Mapping[str, Any], entries: Mapping[str, TensorEntry]) -> SourcePlan:
    """The plan of files that name the layer as these do."""
    found = (each for each in _LAYERS if any(name.startswith(each) for name in entries))
    layer = next(found, _LAYERS[0])
    return {
        path: Source((Tensor(_file_name(path, layer), leaf.shape),))
        for path, leaf in leaves.items()
    }


def _file_name(path: str, layer: str) -> str:
    name = tensor_name(path)
    return layer + name.removeprefix("layer.") if path.startswith("layer.") else name
