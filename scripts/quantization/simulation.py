"""Qwen3 on quantized weights in NumPy alone: what a scheme stands for, written a second time.

Nothing here is of `jaxinfer`. Weights are rounded to what codes and scales can say, and so are the
inputs of products where the scheme does so; all else is float64. Letters: T tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Shape:
    """What the forward pass needs of a config.json beside the arrays' shapes."""

    num_layers: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float


def logits(
    weights: Mapping[str, np.ndarray],
    shape: Shape,
    token_ids: Sequence[int],
    inputs: Callable[[np.ndarray], np.ndarray] = lambda x: x,
) -> np.ndarray:
    """Logits ``[T, V]`` of a text.

    Args:
        weights: float64, by their paths, such as "model.layers.0.mlp.up_proj"; the head is the
            embedding.
        shape: of the model.
        token_ids: of the text.
        inputs: rounds what a projection is multiplied by.
    """
    x = weights["model.embed_tokens"][list(token_ids)]
    rotation, eps = _rotation(len(x), shape), shape.rms_norm_eps
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        h = inputs(_norm(x, own["input_layernorm"], eps))
        q, k, v = (
            (h @ own[f"self_attn.{name}"].T).reshape(len(x), -1, shape.head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q = _rotated(_norm(q, own["self_attn.q_norm"], eps), rotation)
        k = _rotated(_norm(k, own["self_attn.k_norm"], eps), rotation)
        x = x + inputs(_attention(q, k, v)) @ own["self_attn.o_proj"].T
        h = inputs(_norm(x, own["post_attention_layernorm"], eps))
        gate = h @ own["mlp.gate_proj"].T
        h = gate / (1 + np.exp(-gate)) * (h @ own["mlp.up_proj"].T)
        x = x + inputs(h) @ own["mlp.down_proj"].T
    return _norm(x, weights["model.norm"], eps) @ weights["model.embed_tokens"].T


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _rotation(length: int, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines ``[T, 1, D / 2]``."""
    powers = np.arange(0, shape.head_dim, 2) / shape.head_dim
    angles = np.arange(length)[:, None, None] / shape.rope_theta**powers
    return np.cos(angles), np.sin(angles)


def _rotated(heads: np.ndarray, rotation: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    (cos, sin), (first, second) = rotation, np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention; each key head serves a run of query heads."""
    length, heads, head_dim = q.shape
    k, v = (each.repeat(heads // each.shape[1], axis=1).swapaxes(0, 1) for each in (k, v))
    scores = q.swapaxes(0, 1) @ k.swapaxes(1, 2) / np.sqrt(head_dim)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    return (np.exp(log_softmax(scores)) @ v).swapaxes(0, 1).reshape(length, -1)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Logarithms of the softmax along the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Scheme:
    """What becomes of a projection and of its inputs.

    Attributes:
        rounding: of values that share a scale, along the last axis.
        block: outputs and inputs of the weights that share one; None is all inputs of an output.
        input_group: how many successive inputs of a token share one; 0 is all of them, None leaves
            inputs as they are.
    """

    rounding: Callable[[np.ndarray], np.ndarray]
    block: tuple[int, int] | None = None
    input_group: int | None = None

    def weights(self, plain: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All weights in float64, with those of projections rounded from float32."""
        return {
            path: (self._of_blocks(leaf) if path.endswith(_PROJECTIONS) else leaf).astype(float)
            for path, leaf in plain.items()
        }

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """A product's inputs."""
        if self.input_group is None:
            return x
        groups = x.reshape(len(x), -1, self.input_group or x.shape[-1])
        return self.rounding(groups).reshape(x.shape)

    def _of_blocks(self, weight: np.ndarray) -> np.ndarray:
        rows, columns = self.block or (1, weight.shape[1])
        result = np.empty(weight.shape)
        for top in range(0, weight.shape[0], rows):
            for left in range(0, weight.shape[1], columns):
                block = np.s_[top : top + rows, left : left + columns]
                values = weight[block].astype(np.float32)
                result[block] = self.rounding(values.reshape(-1)).reshape(values.shape)
        return result


def _int8(x: np.ndarray) -> np.ndarray:
    scale = _scale(np.abs(x).max(axis=-1, keepdims=True), 127)
    return np.rint(x / scale) * scale


def _float8(x: np.ndarray) -> np.ndarray:
    """float8_e4m3fn: 8 steps between powers of two from 2 ** -6 on, and as wide ones below."""
    scale = _scale(np.abs(x).max(axis=-1, keepdims=True), 448)
    _, exponent = np.frexp(x / scale)  # of a fraction from 0.5 to 1
    step = 2.0 ** (np.maximum(exponent - 1, -6) - 3)
    return np.clip(np.rint(x / scale / step) * step, -448, 448) * scale


def _int4(x: np.ndarray) -> np.ndarray:
    scale = _scale(np.abs(x).max(axis=-1, keepdims=True), 7.5)
    return np.clip(np.rint(x / scale), -8, 7) * scale


def _int4_with_zero_points(x: np.ndarray) -> np.ndarray:
    low = np.minimum(x.min(axis=-1, keepdims=True), 0)
    high = np.maximum(x.max(axis=-1, keepdims=True), 0)
    scale = _scale(high - low, 15)
    zero = np.rint(-low / scale)
    return (np.clip(np.rint(x / scale) + zero, 0, 15) - zero) * scale


def _scale(size: np.ndarray, steps: float) -> np.ndarray:
    """Float32, as it is stored; 1 where all values are 0.

    Many weights of bfloat16 lie halfway between two codes, where the last bit of a scale decides.
    """
    scale = size.astype(np.float32) * np.float32(1 / steps)
    return np.where(scale > 0, scale, np.float32(1))


SCHEMES: Mapping[str, Scheme] = {
    "fp8": Scheme(_float8, (128, 128), input_group=128),
    "FP8_DYNAMIC": Scheme(_float8, input_group=0),
    "int8": Scheme(_int8),
    "W8A8": Scheme(_int8, input_group=0),
    "int4": Scheme(_int4, (1, 128)),
    "W4A16_ASYM": Scheme(_int4_with_zero_points, (1, 128)),
}
"""By the names that `jaxinfer` has for them."""
