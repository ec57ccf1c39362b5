"""Tensors of a GGUF file under Hugging Face's names, dequantized when they are taken.

llama.cpp pairs neighbours in its rotations of a Llama where Hugging Face pairs the halves of a
head, and stores the rows of q and k in its order. They are put back here: a model whose rows are in
the wrong order still writes fluent text, and only likelihoods show it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.gguf.header import GgufHeader, GgufTensor
from jaxinfer.model.checkpoint.gguf.package import gguf
from jaxinfer.model.checkpoint.source_plan import missing_text
from jaxinfer.model.config import ModelConfig

ROPE_FACTORS = "rope_freqs.weight"
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_KINDS = {"weight": "", "bias": "_bias"}  # in the parameter tree
_CHUNK = 1 << 24  # elements dequantized at a time


@dataclass(frozen=True)
class LazyTensor:
    """A leaf that is read from the file when NumPy asks for it.

    Attributes:
        source: where it lies.
        num_rotated_heads: heads whose rows are brought into Hugging Face's order; 0 for none.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    file: Path
    source: GgufTensor
    num_rotated_heads: int = 0
    on_read: Callable[[int], None] = field(default=lambda num_bytes: None, compare=False)

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        """The values, rounded to nearest; ModelLoadError if some are not finite."""
        values = _dequantized(self.file, self.source, self.dtype)
        self.on_read(self.source.num_bytes)
        if not np.isfinite(values).all():
            raise ModelLoadError(
                f"{self.file}: {self.source.name} holds NaN or infinity in {self.dtype}"
            )
        if self.num_rotated_heads:
            values = rotated_by_halves(values, self.num_rotated_heads)
        return values.reshape(self.shape)


def tree_paths(header: GgufHeader) -> dict[str, GgufTensor]:
    """The file's tensors by paths in the tree; ModelLoadError names a foreign one."""
    return {
        _path(name, header): tensor
        for name, tensor in header.tensors.items()
        if name != ROPE_FACTORS
    }


def lazy_leaves(
    header: GgufHeader,
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
    on_read: Callable[[int], None],
) -> dict[str, LazyTensor]:
    """A leaf of each path.

    Raises:
        ModelLoadError: a tensor is missing, foreign, or of another shape; names the first.
    """
    found = tree_paths(header)
    missing = [path for path in shapes if path not in found]
    if missing:
        raise ModelLoadError(f"{header.file}: {missing_text(missing)}")
    for path, tensor in found.items():
        if path not in shapes:
            raise ModelLoadError(
                f"{header.file}: tensor {tensor.name!r} is no part of a {config.model_type}"
            )
        if tensor.shape != shapes[path]:
            raise ModelLoadError(
                f"{header.file}: {tensor.name} has shape {tensor.shape}, the metadata imply "
                f"{shapes[path]}"
            )
    rotated = _rotated_heads(config)
    return {
        path: LazyTensor(
            shape,
            dtype,
            header.file,
            found[path],
            rotated.get(path.removesuffix("_bias").rpartition(".")[2], 0),
            on_read,
        )
        for path, shape in shapes.items()
    }


def rotated_by_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The rows ``[heads * D, ...]`` of q or k in Hugging Face's order, from llama.cpp's."""
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def read_values(header: GgufHeader, name: str) -> np.ndarray:
    """The values of a small tensor, float32."""
    return _dequantized(header.file, header.tensors[name], np.dtype(np.float32))


def _rotated_heads(config: ModelConfig) -> dict[str, int]:
    """Heads by projection whose rows llama.cpp stores in its own order."""
    if config.model_type != "llama":
        return {}
    return {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}


def _path(name: str, header: GgufHeader) -> str:
    *layer, last, kind = name.split(".") if "." in name else ("", name, "")
    is_layer = len(layer) == 2 and layer[0] == "blk" and layer[1].isdecimal()
    if last not in _NAMES or kind not in _KINDS or (layer and not is_layer):
        raise ModelLoadError(
            f"{header.file}: tensor {name!r:.100} is no part of a dense decoder that is converted"
        )
    prefix = f"model.layers.{layer[1]}." if layer else ""
    return prefix + _NAMES[last] + _KINDS[kind]


def _dequantized(file: Path, tensor: GgufTensor, dtype: np.dtype) -> np.ndarray:
    """``[rows, ...]`` in elements; in memory once in ``dtype``, and a chunk in float32."""
    package = gguf()
    kind = package.GGMLQuantizationType[tensor.type]
    num_rows = math.prod(tensor.shape[:-1])
    data = np.memmap(file, np.uint8, mode="r", offset=tensor.offset, shape=(tensor.num_bytes,))
    rows = data.reshape(num_rows, -1)
    values = np.empty((num_rows, tensor.shape[-1]), dtype)
    step = max(1, _CHUNK // tensor.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
        for start in range(0, num_rows, step):
            chunk = np.ascontiguousarray(rows[start : start + step])
            values[start : start + step] = package.quants.dequantize(chunk, kind)
    return values.reshape(tensor.shape)
