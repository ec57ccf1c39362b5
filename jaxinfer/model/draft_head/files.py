"""The files of a draft head: their tensors, checked against the head's shape and the model's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.parameter_names import tensor_name
from jaxinfer.model.checkpoint.safetensors_file import TensorEntry
from jaxinfer.model.checkpoint.source_plan import Shape, Source, SourcePlan, Tensor, check_plan
from jaxinfer.model.checkpoint.weight_files import tensor_entries
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.config import DraftHeadConfig, read_draft_head_config

OFFSETS = "d2t"
"""The tensor of the differences between the model's ids of the head's tokens and its own."""
LAYERS = ("midlayer.", "layers.0.")
"""The published prefixes of the layer's tensors."""
EMBEDDING = "embed_tokens"
"""The path of an embedding of the head's own."""
_HEAD = "lm_head.weight"
_UNUSED = ("t2d",)


@dataclass(frozen=True)
class DraftHead:
    """A draft head in files that have been checked against the model.

    Attributes:
        config: its shape.
        entries: the files' tensors, by name.
        plan: what each parameter is made of, by path.
        has_embedding: whether it has an embedding of its own, and does not read the model's.
    """

    config: DraftHeadConfig
    entries: Mapping[str, TensorEntry]
    plan: SourcePlan
    has_embedding: bool

    def token_ids(self) -> np.ndarray:
        """The model's ids of the head's tokens, int32 ``[Vd]``.

        Raises:
            ModelLoadError: one of them is no token of the model.
        """
        ids = np.arange(self.config.draft_vocab_size, dtype=np.int64)
        if OFFSETS not in self.entries:
            return ids.astype(np.int32)
        entry, size = self.entries[OFFSETS], self.config.layer.vocab_size
        ids += entry.mapped()
        foreign = ids[(ids < 0) | (ids >= size)]
        if len(foreign):
            raise ModelLoadError(
                f"{entry.file}: {OFFSETS} names token {foreign[0]}, and the model has {size}: "
                "a head for another model"
            )
        return ids.astype(np.int32)


def read_draft_head(directory: Path, model: ModelConfig) -> DraftHead:
    """Read the head in a directory, its weights as far as their headers, and check it.

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
    if _HEAD not in entries:  # else the error would speak of models without one
        raise ModelLoadError(f"{directory}: a draft head needs a tensor {_HEAD!r}")
    has_embedding = f"{EMBEDDING}.weight" in entries
    found = (each for each in LAYERS if any(name.startswith(each) for name in entries))
    layer = next(found, LAYERS[0])
    plan = {
        path: Source((Tensor(file_name(path, layer), shape),))
        for path, shape in head_shapes(config, has_embedding=has_embedding).items()
    }
    size, offsets = config.draft_vocab_size, {}
    if size != config.layer.vocab_size or OFFSETS in entries:
        offsets = {OFFSETS: Source((Tensor(OFFSETS, (size,), ("int64", "int32")),))}
    check_plan(plan | offsets, entries, directory)
    head = DraftHead(config, entries, plan, has_embedding)
    head.token_ids()
    return head


def head_shapes(config: DraftHeadConfig, *, has_embedding: bool) -> dict[str, Shape]:
    """The shape of each floating-point parameter, by path.

    Args:
        config: of the head.
        has_embedding: whether it has an embedding of its own.
    """
    layer, E = config.layer, config.layer.hidden_size
    F, D = layer.intermediate_size, layer.head_dim
    H, K = layer.num_attention_heads, layer.num_key_value_heads
    shapes: dict[str, Shape] = {
        "fc": (E, 3 * E),
        "layer.hidden_norm": (E,),
        "layer.input_layernorm": (E,),
        "layer.mlp.down_proj": (E, F),
        "layer.mlp.gate_proj": (F, E),
        "layer.mlp.up_proj": (F, E),
        "layer.post_attention_layernorm": (E,),
        "layer.self_attn.k_proj": (K * D, 2 * E),
        "layer.self_attn.o_proj": (E, H * D),
        "layer.self_attn.q_proj": (H * D, 2 * E),
        "layer.self_attn.v_proj": (K * D, 2 * E),
        "lm_head": (config.draft_vocab_size, E),
        "norm": (E,),
    }
    norms = {"input_norm": (3 * E,)} if config.norm_before_fc else {}
    norms |= {f"fc_norm.{i}": (E,) for i in range(3)} if config.fc_norm else {}
    return shapes | norms | ({EMBEDDING: (layer.vocab_size, E)} if has_embedding else {})


def file_name(path: str, layer: str) -> str:
    """The name of a parameter's tensor, in files with this prefix of the layer's."""
    name = tensor_name(path)
    return layer + name.removeprefix("layer.") if path.startswith("layer.") else name
