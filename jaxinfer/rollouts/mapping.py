"""Declares how a trainer's parameters become the engine's; checked before anything runs."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.quantized.quantization import is_scale
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.sources import (
    LAYER,
    Assignment,
    ParamSource,
    check_source,
    nearest,
    without_layer,
)
from jaxinfer.rollouts.targets import targets_of
from jaxinfer.rollouts.trees import Leaves, canonical, leaves_by_path


@dataclass(frozen=True)
class ParamsMapping:
    """A trainer's parameters as the engine's: each of the engine's exactly once.

    The engine's paths are those of plain weights, also where it makes integers and scales of them.
    Ready ones are `hugging_face`, `nnx_linear`, `tunix_qwen3` and `maxtext_qwen3`, each also for
    layers that are `stacked`. Further leaves of the trainer's tree are not read, but it must have
    the model's number of layers. Arrays of another floating-point dtype are converted to the
    engine's.

    Attributes:
        sources: for each path of the engine, with ``{layer}`` for the layer, its source: a
            `ParamSource`, or a path alone. A dictionary, stored as pairs.
        stacked_axis: the axis that stacked layers lie along, in the trainer's arrays.

    Raises:
        TypeError: a source is neither a path nor a `ParamSource`.
    """

    sources: Any
    stacked_axis: int | None = None

    def __post_init__(self) -> None:
        """Store the sources as a tuple, so that a mapping can be hashed."""
        pairs: Iterable[tuple[str, Any]] = (
            self.sources.items() if isinstance(self.sources, Mapping) else self.sources
        )
        object.__setattr__(self, "sources", tuple((path, _source(path, s)) for path, s in pairs))

    def assignments(self, leaves: Leaves, wanted: Any) -> tuple[Assignment, ...]:
        """The sources of each parameter of the engine, in the order of `wanted`.

        Args:
            leaves: the trainer's, from `leaves_by_path`.
            wanted: the engine's tree of `jax.ShapeDtypeStruct`.

        Raises:
            ValueError: a parameter is left unset or set twice, or is none of this model's; a source
                is not in the tree, does not give the engine's shape, or has another number of
                layers. Names the first.
            TypeError: a source is no array.
        """
        targets = {each.path: each for each in targets_of(wanted)}
        found: dict[str, Assignment] = {}
        for each in _expanded(self, tuple(targets)):
            if each.target in found:
                raise ValueError(
                    f"the mapping sets {each.target} twice, from {found[each.target].path} and "
                    f"from {each.path}"
                )
            if each.target not in targets:
                near = nearest(each.target, targets)
                raise ValueError(f"the mapping sets {each.target}, which this model lacks{near}")
            found[each.target] = each
        for target, like in targets.items():
            if target not in found:
                kind = "floating-point" if like.dtype is None else like.dtype
                shape = f"{kind}{list(like.shape)}"
                raise ValueError(f"the mapping leaves {target} unset, which must be {shape}")
            check_source(found[target], leaves, like)
        return tuple(found[target] for target in targets)

    def stacked(self, axis: int = 0) -> "ParamsMapping":
        """This mapping for stacked layers: each parameter of a layer is one array of all layers.

        That is how `nnx.scan`, `nnx.vmap` and Linen's `nn.scan` hold them:
        ``layers.{layer}.mlp.kernel`` in this mapping becomes ``layers.mlp.kernel`` in the new one.

        Args:
            axis: of the layers, in the trainer's arrays.

        Raises:
            ValueError: they are stacked already.
        """
        if self.stacked_axis is not None:
            raise ValueError(f"this mapping's layers are stacked, along axis {self.stacked_axis}")
        sources = (
            (path, dataclasses.replace(source, path=without_layer(source.path)))
            for path, source in self.sources
        )
        return ParamsMapping(tuple(sources), stacked_axis=axis)

    @classmethod
    def hugging_face(cls, config: ModelConfig) -> "ParamsMapping":
        """Hugging Face's names and ``[out, in]``, as the engine's own: each array is copied."""
        return cls({path: path for path in _patterns(config)})

    @classmethod
    def nnx_linear(cls, config: ModelConfig) -> "ParamsMapping":
        """Hugging Face's names on Flax layers.

        `nnx.Linear` has ``kernel`` ``[in, out]`` and ``bias``, `nnx.Embed` ``embedding`` and
        `nnx.RMSNorm` ``scale``. Linen's layers have the same.
        """
        return cls({path: _flax_layer(path) for path in _patterns(config)})

    @classmethod
    def tunix_qwen3(cls, config: ModelConfig) -> "ParamsMapping":
        """Tunix's `Qwen3`: `nnx.state(model, nnx.Param)`, heads as dimensions of their own.

        A model's adapters are left out.

        Raises:
            ValueError: the model has biases, which tunix's has not, or experts.
        """
        _check_no_bias(config)
        attention, mlp = "layers.{layer}.attn", "layers.{layer}.mlp"
        table = {
            "model.embed_tokens": "embedder.input_embedding",
            "model.norm": "final_norm.w",
            "lm_head": ParamSource("lm_head.w", (1, 0)),
            "input_layernorm": "layers.{layer}.input_layernorm.w",
            "post_attention_layernorm": "layers.{layer}.post_attention_layernorm.w",
            "q_norm": f"{attention}.q_norm.w",
            "k_norm": f"{attention}.k_norm.w",
            "o_proj": ParamSource(f"{attention}.o_proj.w", (2, 0, 1), reshape=True),
        }
        for name in ("q_proj", "k_proj", "v_proj"):
            table[name] = ParamSource(f"{attention}.{name}.w", (1, 2, 0), reshape=True)
        for name in ("gate_proj", "up_proj", "down_proj"):
            table[name] = ParamSource(f"{mlp}.{name}.kernel", (1, 0))
        return cls(_by_last_name(config, table))

    @classmethod
    def maxtext_qwen3(cls, config: ModelConfig, *, param_scan_axis: int = 1) -> "ParamsMapping":
        """MaxText's dense Qwen3 with ``scan_layers=True``.

        Assumed from MaxText's converter, not tested against MaxText: kernels ``[in, L, ...]`` with
        heads as dimensions of their own; no scale in the query kernel; an embedding that is not
        padded beyond the vocabulary.

        Args:
            config: the model's shape.
            param_scan_axis: MaxText's setting of that name: the axis of L.

        Raises:
            ValueError: the model has biases or experts.
        """
        _check_no_bias(config)
        layers = "decoder.layers"
        attention, mlp = f"{layers}.self_attention", f"{layers}.mlp"
        table = {
            "model.embed_tokens": "token_embedder.embedding",
            "model.norm": "decoder.decoder_norm.scale",
            "lm_head": ParamSource("decoder.logits_dense.kernel", (1, 0)),
            "input_layernorm": f"{layers}.pre_self_attention_layer_norm.scale",
            "post_attention_layernorm": f"{layers}.post_self_attention_layer_norm.scale",
            "q_norm": f"{attention}.query_norm.scale",
            "k_norm": f"{attention}.key_norm.scale",
            "o_proj": ParamSource(f"{attention}.out.kernel", (2, 0, 1), reshape=True),
        }
        for name, theirs in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
            table[name] = ParamSource(f"{attention}.{theirs}.kernel", (1, 2, 0), reshape=True)
        for name, theirs in (("gate_proj", "wi_0"), ("up_proj", "wi_1"), ("down_proj", "wo")):
            table[name] = ParamSource(f"{mlp}.{theirs}.kernel", (1, 0))
        return cls(_by_last_name(config, table), stacked_axis=param_scan_axis)


def check_mapping(mapping: Any) -> None:
    """Raise TypeError unless it is a `ParamsMapping` or None."""
    if mapping is not None and not isinstance(mapping, ParamsMapping):
        raise TypeError(
            f"mapping must be a ParamsMapping, got {type(mapping).__name__}; for a ready one write "
            "ParamsMapping.tunix_qwen3(config), for instance"
        )


def quantizing_mapping(leaves: Leaves, config: ModelConfig) -> ParamsMapping | None:
    """What makes an engine's parameters of a tree with its names whose weights are of another form.

    None where nothing is to be quantized or taken from a `QuantizedLeaf`: the leaves, from
    `leaves_by_path`, are plain as the engine's, or nodes of codes and scales.
    """
    if any(isinstance(leaf, QuantizedLeaf) for leaf in leaves.values()):
        return ParamsMapping.hugging_face(config)
    if config.quantization is None or any(map(is_scale, leaves)):
        return None
    return ParamsMapping.hugging_face(config)


@functools.lru_cache(maxsize=16)
def _expanded(mapping: ParamsMapping, targets: tuple[str, ...]) -> tuple[Assignment, ...]:
    """The source of each of an engine's paths; cached by mapping and model."""
    return tuple(_assignments(mapping, targets))


def _assignments(mapping: ParamsMapping, targets: tuple[str, ...]) -> Iterator[Assignment]:
    parts = [path.split(".") for path in targets if path.startswith("model.layers.")]
    layers = sorted({int(each[2]) for each in parts})
    for pattern, source in mapping.sources:
        if LAYER not in pattern:
            path = canonical(source.path)
            yield Assignment(canonical(pattern), source, path, 0, None, len(layers))
            continue
        axis = None
        if LAYER not in source.path:
            axis = mapping.stacked_axis
            if axis is None:
                raise ValueError(
                    f"the mapping sets {pattern} from {source.path}, which has no {LAYER}; "
                    "give stacked_axis=... if the layers are stacked there"
                )
        for layer in layers:
            target, path = (
                canonical(text.replace(LAYER, str(layer))) for text in (pattern, source.path)
            )
            yield Assignment(target, source, path, layer, axis, len(layers))


def _source(path: str, given: Any) -> ParamSource:
    if isinstance(given, str):
        return ParamSource(given)
    if not isinstance(given, ParamSource):
        kind = type(given).__name__
        raise TypeError(f"the source of {path} must be a path or a ParamSource, got {kind}")
    return given


def _patterns(config: ModelConfig) -> list[str]:
    """The engine's paths; the layers' paths are one, with ``{layer}``."""
    plain = dataclasses.replace(config, quantization=None)
    plain = family_of(config.model_type).with_layers(plain, [0])
    paths = leaves_by_path(abstract_params(plain, "f4"))
    return [path.replace("model.layers.0.", f"model.layers.{LAYER}.") for path in paths]


def _by_last_name(config: ModelConfig, table: Mapping[str, Any]) -> dict[str, Any]:
    """A source for each of the engine's paths, from a table of whole paths and last names."""
    if config.experts is not None:
        raise ValueError("this mapping is for dense models, and the engine's has experts")
    return {p: table[p] if p in table else table[p.split(".")[-1]] for p in _patterns(config)}


def _flax_layer(path: str) -> ParamSource:
    if path.endswith("_bias"):
        return ParamSource(path.removesuffix("_bias") + ".bias")
    if path.endswith("norm"):
        return ParamSource(f"{path}.scale")
    if path.endswith("embed_tokens"):
        return ParamSource(f"{path}.embedding")
    return ParamSource(f"{path}.kernel", (0, 2, 1) if ".experts." in path else (1, 0))


def _check_no_bias(config: ModelConfig) -> None:
    if any(kind.biases for kind in family_of(config.model_type).layer_kinds(config)):
        raise ValueError(
            "this mapping has no source for the biases of this model's projections; write a "
            "ParamsMapping that has"
        )
