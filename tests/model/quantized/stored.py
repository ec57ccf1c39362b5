"""Files of quantized checkpoints, written element by element from the definitions of formats."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name
from jaxinfer.model.checkpoint.safetensors_file import write_file
from tests.model import tiny

CONFIG = tiny.config(
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    tie_word_embeddings=False,
)
G = 16  # inputs of a group; outputs and inputs of a block
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Format:
    """A way of storing weights.

    Attributes:
        config: the `quantization_config`.
        write: ``(generator, outputs, inputs) -> (tensors by suffix, the weight in float64)``.
        inputs: what a product makes of a row of its inputs; None leaves them.
    """

    config: dict[str, Any]
    write: Callable[[np.random.Generator, int, int], tuple[dict[str, np.ndarray], np.ndarray]]
    inputs: str | None = None


def compressed(kind: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict:
    plain = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
    group = {"targets": ["Linear"], "weights": plain | weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group | {"output_activations": None}},
        "ignore": ["lm_head"],
    }


def words(integers: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Int32 with the first integer in the lowest bits, along an axis."""
    integers = np.moveaxis(integers, axis, -1).astype(np.uint64)
    each = 32 // bits
    packed = np.zeros((*integers.shape[:-1], -(-integers.shape[-1] // each)), np.uint64)
    for index in range(integers.shape[-1]):
        packed[..., index // each] |= integers[..., index] << np.uint64(bits * (index % each))
    return np.moveaxis(packed.astype(np.uint32).view(np.int32), -1, axis)


def _scale(rng, *shape):
    # Values of float16, which AWQ and GPTQ store, and bfloat16 alike.
    return (rng.integers(1, 9, shape) / 1024).astype(np.float32)


def _fp8(rng, outputs, inputs):
    return rng.normal(0, 40, (outputs, inputs)).astype(jnp.float8_e4m3fn)


def _wide(codes):
    return codes.astype(np.float32).astype(np.float64)


def int8_channel(rng, outputs, inputs):
    codes, scale = rng.integers(-128, 128, (outputs, inputs), np.int8), _scale(rng, outputs, 1)
    return {"weight": codes, "weight_scale": scale}, _wide(codes) * scale


def int8_static(rng, outputs, inputs):
    codes, scale = rng.integers(-128, 128, (outputs, inputs), np.int8), _scale(rng, 1)
    tensors = {"weight": codes, "weight_scale": scale, "input_scale": np.float32([0.03])}
    return tensors, _wide(codes) * scale


def fp8_channel(rng, outputs, inputs):
    codes, scale = _fp8(rng, outputs, inputs), _scale(rng, outputs, 1)
    scale = scale.astype(jnp.bfloat16)
    return {"weight": codes, "weight_scale": scale}, _wide(codes) * _wide(scale)


def fp8_static(rng, outputs, inputs):
    codes, scale = _fp8(rng, outputs, inputs), _scale(rng, 1)
    tensors = {"weight": codes, "weight_scale": scale, "input_scale": np.float32([0.01])}
    return tensors, _wide(codes) * scale


def fp8_blocks(name):
    def write(rng, outputs, inputs):
        codes, scale = _fp8(rng, outputs, inputs), _scale(rng, outputs // G, inputs // G)
        weight = _wide(codes)
        for o in range(outputs):
            for i in range(inputs):
                weight[o, i] *= scale[o // G, i // G]
        return {"weight": codes, name: scale.astype(jnp.bfloat16)}, weight

    return write


def fp8_of_mistral(rng, outputs, inputs):
    codes, scale = _fp8(rng, outputs, inputs), _scale(rng).astype(jnp.bfloat16)
    activation = np.float32(0.01).astype(jnp.bfloat16)
    tensors = {"weight": codes, "weight_scale_inv": scale, "activation_scale": activation}
    return {name: np.asarray(each) for name, each in tensors.items()}, _wide(codes) * float(scale)


def _int4(rng, outputs, inputs, groups, has_zeros, order=None):
    """Integers, scales and zero points, and the weight, element by element."""
    codes = rng.integers(0, 16, (outputs, inputs))
    scale = _scale(rng, outputs, groups)
    zeros = rng.integers(1, 16, (outputs, groups)) if has_zeros else np.full((outputs, groups), 8)
    weight = np.zeros((outputs, inputs))
    for o in range(outputs):
        for i in range(inputs):
            group = i // (inputs // groups) if order is None else order[i]
            weight[o, i] = (codes[o, i] - zeros[o, group]) * np.float64(scale[o, group])
    return codes, scale, zeros, weight


def packed(has_zeros=False, channel=False, ordered=False):
    def write(rng, outputs, inputs):
        groups = 1 if channel else inputs // G
        order = rng.permutation(np.arange(inputs) // G).astype(np.int32) if ordered else None
        codes, scale, zeros, weight = _int4(rng, outputs, inputs, groups, has_zeros, order)
        tensors = {
            "weight_packed": words(codes, 4, 1),
            "weight_scale": scale,
            "weight_shape": np.array([outputs, inputs], np.int64),
        }
        if has_zeros:
            tensors["weight_zero_point"] = words(zeros, 4, 0)
        if order is not None:
            tensors["weight_g_idx"] = order
        return tensors, weight

    return write


def packed8(rng, outputs, inputs):
    codes, scale = rng.integers(0, 256, (outputs, inputs)), _scale(rng, outputs, inputs // G)
    tensors = {
        "weight_packed": words(codes, 8, 1),
        "weight_scale": scale,
        "weight_shape": np.array([outputs, inputs], np.int64),
    }
    return tensors, (codes - 128.0) * np.repeat(scale, G, axis=1)


def awq(rng, outputs, inputs):
    codes, scale, zeros, weight = _int4(rng, outputs, inputs, inputs // G, True)

    def interleaved(integers):  # [N, outputs]
        ordered = np.zeros_like(integers)
        for o in range(outputs):
            ordered[:, o] = integers[:, o // 8 * 8 + AWQ_ORDER[o % 8]]
        return words(ordered, 4, 1)

    tensors = {
        "qweight": interleaved(codes.T),
        "qzeros": interleaved(zeros.T),
        "scales": scale.T.astype(np.float16),
    }
    return tensors, weight


def gptq(less=1, has_zeros=False, ordered=False, channel=False):
    def write(rng, outputs, inputs):
        groups = 1 if channel else inputs // G
        order = (np.arange(inputs) // (inputs // groups)).astype(np.int32)
        order = rng.permutation(order) if ordered else order
        codes, scale, zeros, weight = _int4(rng, outputs, inputs, groups, has_zeros, order)
        tensors = {
            "qweight": words(codes, 4, 1).T,
            "qzeros": words(zeros - less, 4, 0).T,
            "scales": scale.T.astype(np.float16),
            "g_idx": order,
            "bias": np.zeros(outputs, np.float16),
        }
        return {name: np.ascontiguousarray(each) for name, each in tensors.items()}, weight

    return write


def gptq8(rng, outputs, inputs):
    codes, scale = rng.integers(0, 256, (outputs, inputs)), _scale(rng, outputs, inputs // G)
    tensors = {
        "qweight": np.ascontiguousarray(words(codes, 8, 1).T),
        "qzeros": words(np.full((inputs // G, outputs), 127), 8, 1),
        "scales": np.ascontiguousarray(scale.T.astype(np.float16)),
        "g_idx": (np.arange(inputs) // G).astype(np.int32),
    }
    return tensors, (codes - 128.0) * np.repeat(scale, G, axis=1)


_INT4 = {"num_bits": 4, "strategy": "group", "group_size": G}
_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_STATIC = _TOKEN | {"strategy": "tensor", "dynamic": False}
_FLOAT = {"type": "float"}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": G, "sym": True, "desc_act": False}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": G, "zero_point": True, "version": "gemm"}

FORMATS: dict[str, Format] = {
    "int8": Format(compressed("int-quantized", {"strategy": "channel"}), int8_channel),
    "w8a8": Format(
        compressed("int-quantized", {"strategy": "channel"}, _TOKEN), int8_channel, "int8 token"
    ),
    "w8a8_static": Format(
        compressed("int-quantized", {"strategy": "tensor"}, _STATIC), int8_static, "int8 0.03"
    ),
    "fp8_dynamic": Format(
        compressed("float-quantized", _FLOAT | {"strategy": "channel"}, _TOKEN | _FLOAT),
        fp8_channel,
        "fp8 token",
    ),
    "fp8_static": Format(
        compressed("float-quantized", _FLOAT | {"strategy": "tensor"}, _STATIC | _FLOAT),
        fp8_static,
        "fp8 0.01",
    ),
    "fp8_block": Format(
        compressed(
            "float-quantized",
            _FLOAT | {"strategy": "block", "block_structure": [G, G]},
            _TOKEN | _FLOAT | {"strategy": "group", "group_size": G},
        ),
        fp8_blocks("weight_scale"),
        "fp8 group",
    ),
    "pack": Format(compressed("pack-quantized", _INT4), packed()),
    "pack_channel": Format(
        compressed("pack-quantized", {"num_bits": 4, "strategy": "channel"}), packed(channel=True)
    ),
    "pack_zeros": Format(
        compressed("pack-quantized", _INT4 | {"symmetric": False}), packed(has_zeros=True)
    ),
    "pack_order": Format(
        compressed("pack-quantized", _INT4 | {"actorder": "group"}), packed(ordered=True)
    ),
    "pack8": Format(compressed("pack-quantized", _INT4 | {"num_bits": 8}), packed8),
    "hf_fp8": Format(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
        | {"weight_block_size": [G, G]},
        fp8_blocks("weight_scale_inv"),
        "fp8 group",
    ),
    "hf_fp8_static": Format(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        fp8_of_mistral,
        "fp8 0.01",
    ),
    "awq": Format(_AWQ, awq),
    "gptq": Format(_GPTQ, gptq()),
    "gptq_zeros": Format(_GPTQ | {"sym": False}, gptq(has_zeros=True)),
    "gptq_channel": Format(_GPTQ | {"group_size": -1}, gptq(channel=True)),
    "gptq_order": Format(
        _GPTQ | {"sym": False, "desc_act": True}, gptq(has_zeros=True, ordered=True)
    ),
    "gptq_v2": Format(
        _GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, gptq(less=0, has_zeros=True)
    ),
    "gptq8": Format(_GPTQ | {"bits": 8}, gptq8),
}
"""By a name of the tests' own."""


def checkpoint(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The files' tensors by name, and the plain weights that they stand for, by path."""
    tensors, plain = _drawn(name)
    return dict(tensors), dict(plain)


@functools.cache
def _drawn(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng, tensors, plain = np.random.default_rng(7), {}, {}
    for path, leaf in flatten(tiny.params(CONFIG)):
        values = np.asarray(leaf)
        if path.endswith("_proj"):
            parts, weight = FORMATS[name].write(rng, *values.shape)
            tensors |= {f"{path}.{suffix}": each for suffix, each in parts.items()}
            plain[path] = weight.astype(np.float32)
        else:
            tensors[tensor_name(path)] = plain[path] = values
    return tensors, plain


def write(directory: Any, name: str, tensors: dict[str, np.ndarray], **changes: Any) -> Any:
    """A model directory of these tensors, whose `quantization_config` has changes."""
    write_file(directory / "model.safetensors", tensors.items(), tensors)
    config = CONFIG.to_hf() | {"quantization_config": FORMATS[name].config | changes}
    (directory / "config.json").write_text(json.dumps(config))
    return directory
