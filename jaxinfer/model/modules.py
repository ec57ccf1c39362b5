"""Flax modules that define a decoder's parameters: shape, initial value and logical axes of each.

They hold no forward: the pure functions of ``layers`` run on the plain tree taken from them.
This is the only file that imports Flax.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxinfer.model.checkpoint.parameter_names import unflatten
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts
from jaxinfer.model.families.table import family_of
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.sharding import (
    ShardingRules,
    check_divisible,
    num_expert_groups,
    param_spec,
    tensor_parallel_size,
)

_WHOLE = "head_dim"  # a logical axis that no rule splits
_INITIAL_STDDEV = 0.02  # Hugging Face's default initializer_range


class _Maker:
    """Creates parameters of one dtype, each with its logical axes attached as metadata."""

    def __init__(self, rngs: nnx.Rngs, dtype: DTypeLike) -> None:
        self.rngs, self.dtype = rngs, dtype

    def matrix(self, shape: tuple[int, ...], axes: tuple[str, ...]) -> nnx.Param:
        values = jax.random.normal(self.rngs.params(), shape, self.dtype)
        return nnx.Param(values * _INITIAL_STDDEV, logical_axes=axes)

    def ones(self, size: int, axis: str) -> nnx.Param:
        return nnx.Param(jnp.ones((size,), self.dtype), logical_axes=(axis,))

    def zeros(self, size: int, axis: str) -> nnx.Param:
        return nnx.Param(jnp.zeros((size,), self.dtype), logical_axes=(axis,))

    def biases(self, module: nnx.Module, kind: LayerKind) -> None:
        """Give a module's projections, ``[out, in]``, the biases that its kind of layer has."""
        for name in kind.biases:
            matrix = getattr(module, name, None)
            if matrix is not None:
                size, axis = matrix.shape[0], matrix.logical_axes[0]
                setattr(module, f"{name}_bias", self.zeros(size, axis))


class Attention(nnx.Module):
    """Projections ``[out, in]`` with their biases, and the norms of query and key heads."""

    def __init__(self, config: ModelConfig, kind: LayerKind, make: _Maker) -> None:
        hidden, dim = config.hidden_size, config.head_dim
        q_size, kv_size = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self.q_proj = make.matrix((q_size, hidden), ("heads", "embed"))
        self.k_proj = make.matrix((kv_size, hidden), ("kv_heads", "embed"))
        self.v_proj = make.matrix((kv_size, hidden), ("kv_heads", "embed"))
        self.o_proj = make.matrix((hidden, q_size), ("embed", "heads"))
        make.biases(self, kind)
        if kind.head_norms:
            self.q_norm = make.ones(dim, "head_dim")
            self.k_norm = make.ones(dim, "head_dim")
        if kind.wide_norms:
            self.q_norm = make.ones(q_size, "heads")
            self.k_norm = make.ones(kv_size, "kv_heads")


class GatedMLP(nnx.Module):
    """The three matrices of SwiGLU with their biases."""

    def __init__(self, config: ModelConfig, kind: LayerKind, make: _Maker) -> None:
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = make.matrix((intermediate, hidden), ("intermediate", "embed"))
        self.up_proj = make.matrix((intermediate, hidden), ("intermediate", "embed"))
        self.down_proj = make.matrix((hidden, intermediate), ("embed", "intermediate"))
        make.biases(self, kind)


class ExpertMatrices(nnx.Module):
    """The three matrices of SwiGLU of every expert, ``[X, out, in]``."""

    def __init__(self, config: ModelConfig, experts: Experts, make: _Maker) -> None:
        hidden, wide = config.hidden_size, experts.intermediate_size
        inner, outer = ("experts", "expert_width", "embed"), ("experts", "embed", "expert_width")
        self.gate_proj = make.matrix((experts.num_experts, wide, hidden), inner)
        self.up_proj = make.matrix((experts.num_experts, wide, hidden), inner)
        self.down_proj = make.matrix((experts.num_experts, hidden, wide), outer)


class RoutedMLP(nnx.Module):
    """A router, ``[X, in]``, and experts."""

    def __init__(self, config: ModelConfig, experts: Experts, make: _Maker) -> None:
        self.gate = make.matrix((experts.num_experts, config.hidden_size), (_WHOLE, "embed"))
        self.experts = ExpertMatrices(config, experts, make)


class DecoderLayer(nnx.Module):
    """One block: attention and MLP, or experts, with a norm for each."""

    def __init__(self, config: ModelConfig, kind: LayerKind, make: _Maker) -> None:
        for name in kind.norms:
            setattr(self, name, make.ones(config.hidden_size, "embed"))
        self.self_attn = Attention(config, kind, make)
        if kind.experts and config.experts is not None:
            self.mlp = RoutedMLP(config, config.experts, make)
        else:
            self.mlp = GatedMLP(config, kind, make)


class Backbone(nnx.Module):
    """Embedding, layers and final norm: Hugging Face's ``model.`` prefix."""

    def __init__(self, config: ModelConfig, make: _Maker) -> None:
        self.embed_tokens = make.matrix((config.vocab_size, config.hidden_size), ("vocab", "embed"))
        kinds = family_of(config.model_type).layer_kinds(config)
        self.layers = nnx.List([DecoderLayer(config, kind, make) for kind in kinds])
        self.norm = make.ones(config.hidden_size, "embed")


class Decoder(nnx.Module):
    """The whole model; a tied one has no ``lm_head``."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs, dtype: DTypeLike) -> None:
        make = _Maker(rngs, dtype)
        self.model = Backbone(config, make)
        if not config.tie_word_embeddings:
            self.lm_head = make.matrix((config.vocab_size, config.hidden_size), ("vocab", "embed"))


class _Leaf(NamedTuple):
    """An array of the tree before it has values."""

    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str, ...]


def init_params(config: ModelConfig, rng: jax.Array, dtype: DTypeLike) -> dict[str, Any]:
    """Random parameters; as `architecture.init_params`."""
    state = nnx.state(Decoder(config, nnx.Rngs(params=rng), dtype))
    return quantize_params(_plain(state, lambda _, leaf: leaf[...]), config.quantization)


def abstract_params(
    config: ModelConfig,
    dtype: DTypeLike,
    mesh: jax.sharding.Mesh | None = None,
    rules: ShardingRules | None = None,
) -> dict[str, Any]:
    """Shapes, dtypes and shardings of all parameters; as `architecture.abstract_params`."""
    rules = rules or ShardingRules()
    num_devices = 1 if mesh is None else tensor_parallel_size(mesh, rules)
    check_divisible(config, num_devices, 1 if mesh is None else num_expert_groups(mesh, rules))

    def describe(leaf: _Leaf) -> jax.ShapeDtypeStruct:
        sharding = None
        if mesh is not None:
            spec = param_spec(leaf.axes, config, rules, num_devices)
            sharding = jax.sharding.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return _described(config, dtype, describe)


def _described(
    config: ModelConfig, dtype: DTypeLike, describe: Callable[[_Leaf], Any]
) -> dict[str, Any]:
    """The tree with each array described; of a quantized projection, those of its node."""

    def convert(path: str, leaf: Any) -> Any:
        whole = _Leaf(leaf.shape, leaf.dtype, leaf.logical_axes)
        if config.quantization is None or not config.quantization.takes(path):
            return describe(whole)
        axes = {**dict(enumerate(whole.axes)), None: _WHOLE}
        return {
            name: describe(
                _Leaf(each.shape, jnp.dtype(each.dtype), tuple(axes[i] for i in each.axes))
            )
            for name, each in config.quantization.node(*whole.shape).items()
        }

    state = nnx.state(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(params=0), dtype)))
    return _plain(state, convert)


def _plain(state: Any, convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Turn Flax's state into nested dicts with string keys, each variable converted."""
    leaves = {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(state)}
    return unflatten({path: convert(path, leaf) for path, leaf in leaves.items()})
