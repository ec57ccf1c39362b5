"""Declares how a trainer's parameters become the engine's; checked before anything runs."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.checks import MAX_INT32, check_integer
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.quantized.quantization import is_scale
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.sources import (
    LAYER,
    Assignment,
    ParamSource,
    Table,
    check_source,
    nearest,
    without_layer,
)
from jaxinfer.rollouts.targets import targets_of
from jaxinfer.rollouts.trainers import maxtext, skyrl, tunix
from jaxinfer.rollouts.trees import Leaves, canonical, leaves_by_path


@dataclass(frozen=True)
class ParamsMapping:
    """A trainer's parameters as the engine's: each of the engine's exactly once.

    The engine's paths are those of plain weights, also where the engine quantizes them.
    Ready ones are `hugging_face`, `nnx_linear`, `tunix_qwen3`, `maxtext_qwen3`, `maxtext_llama`,
    `skyrl_qwen3` and `skyrl_llama`; those of separate layers also for `stacked` ones. Further
    leaves of the trainer's tree are not read, but it must have the model's number of layers. Arrays
    of another floating-point dtype are converted to the engine's.

    Attributes:
        sources: for each path of the engine, with ``{layer}`` for the layer, its source: a
            `ParamSource`, or a path alone. A dictionary, stored as pairs.
        stacked_axis: the axis that stacked layers lie along, in the trainer's arrays.

    Raises:
        TypeError: a source is neither a path nor a `ParamSource`, or the axis is no integer.
    """

    sources: Any
    stacked_axis: int | None = None

    def __post_init__(self) -> None:
        """Store the sources as a tuple, so that a mapping can be hashed."""
        pairs: Iterable[tuple[str, Any]] = (
            self.sources.items() if isinstance(self.sources, Mapping) else self.sources
        )
        object.__setattr__(self, "sources", tuple((path, _source(path, s)) for path, s in pairs))
        if self.stacked_axis is not None:
            check_integer("stacked_axis", self.stacked_axis, -MAX_INT32, MAX_INT32)

    def assignments(self, leaves: Leaves, wanted: Any) -> tuple[Assignment, ...]:
        """The sources of each parameter of the engine, in the order of `wanted`.

        Args:
            leaves: the trainer's, from `leaves_by_path`.
            wanted: the engine's tree of `jax.ShapeDtypeStruct`.

        Raises:
            ValueError: a parameter is left unset or set twice, or is none of this model's; a source
                is not in the tree, does not give the engine's shape, or has another number of
                layers. Names the first.
            TypeError: a source is no array of floating-point numbers.
        """
        targets = {each.path: each for each in targets_of(wanted)}
        found: dict[str, Assignment] = {}
        for each in self.expanded(_layers_of(targets)):
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

    def expanded(self, layers: tuple[int, ...]) -> tuple[Assignment, ...]:
        """The sources of a model with these layers, each with its target and its layer.

        Raises:
            ValueError: a target is set twice, or a layer's source names none and is not stacked.
        """
        return _expanded(self, layers)

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
        return cls(_from_table(config, tunix.QWEN3))

    @classmethod
    def maxtext_qwen3(
        cls, config: ModelConfig, *, param_scan_axis: int | None = 1
    ) -> "ParamsMapping":
        """MaxText's dense Qwen3: `nnx.state(model, nnx.Param)`, or Linen's variables.

        Args:
            config: the model's shape.
            param_scan_axis: MaxText's setting of that name, the axis of stacked layers; None for
                separate ones, with ``scan_layers=False``.

        Raises:
            ValueError: the model has biases or experts.
        """
        return _perhaps_stacked(cls(_from_table(config, maxtext.QWEN3)), param_scan_axis)

    @classmethod
    def maxtext_llama(
        cls,
        config: ModelConfig,
        *,
        param_scan_axis: int | None = 1,
        rope_type: str = "llama3.1",
    ) -> "ParamsMapping":
        """MaxText's Llama 2 and 3, whose query kernels are divided by sqrt(D).

        Args:
            config: the model's shape.
            param_scan_axis: as in `maxtext_qwen3`.
            rope_type: MaxText's setting of that name: "llama3.1", which models named so have in any
                case, rotates neighbouring numbers of a head; "default" those half a head apart.

        Raises:
            ValueError: another `rope_type`, or as `maxtext_qwen3`.
        """
        table = maxtext.llama(config, rope_type)
        return _perhaps_stacked(cls(_from_table(config, table)), param_scan_axis)

    @classmethod
    def skyrl_qwen3(cls, config: ModelConfig) -> "ParamsMapping":
        """SkyRL's dense Qwen3 of its JAX backend: `nnx.state(model, nnx.Param)`.

        Adapters are left out, and so are hyper-connections, which must be off.

        Raises:
            ValueError: the model has biases or experts.
        """
        return cls(_from_table(config, skyrl.qwen3(config)), skyrl.STACKED_AXIS)

    @classmethod
    def skyrl_llama(cls, config: ModelConfig) -> "ParamsMapping":
        """SkyRL's Llama 3 of its JAX backend; as `skyrl_qwen3`."""
        return cls(_from_table(config, skyrl.LLAMA), skyrl.STACKED_AXIS)


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


def _layers_of(paths: Iterable[str]) -> tuple[int, ...]:
    """The layers that an engine's paths have."""
    parts = [path.split(".") for path in paths if path.startswith("model.layers.")]
    return tuple(sorted({int(each[2]) for each in parts}))


@functools.lru_cache(maxsize=16)
def _expanded(mapping: ParamsMapping, layers: tuple[int, ...]) -> tuple[Assignment, ...]:
    """Cached by mapping and layers."""
    found: dict[str, Assignment] = {}
    for each in _assignments(mapping, layers):
        if each.target in found:
            raise ValueError(
                f"the mapping sets {each.target} twice, from {found[each.target].path} and "
                f"from {each.path}"
            )
        found[each.target] = each
    return tuple(found.values())


def _assignments(mapping: ParamsMapping, layers: tuple[int, ...]) -> Iterator[Assignment]:
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


def _from_table(config: ModelConfig, table: Table) -> Table:
    """A source for each of the engine's paths, from a trainer's table."""
    if config.experts is not None:
        raise ValueError("this mapping is for dense models, and the engine's has experts")
    names = {p: p if p in table else p.split(".")[-1] for p in _patterns(config)}
    for path, name in names.items():
        if name not in table:
            raise ValueError(
                f"this mapping has no source for the model's {path}; write a ParamsMapping that has"
            )
    if unused := table.keys() - names.values() - {"lm_head"}:
        raise ValueError(
            f"this mapping is for models with {min(unused)}, and the engine's, a "
            f"{config.model_type}, has none"
        )
    return {path: table[name] for path, name in names.items()}


def _perhaps_stacked(mapping: ParamsMapping, axis: int | None) -> ParamsMapping:
    return mapping if axis is None else mapping.stacked(axis)


def _flax_layer(path: str) -> ParamSource:
    if path.endswith("_bias"):
        return ParamSource(path.removesuffix("_bias") + ".bias")
    if path.endswith("norm"):
        return ParamSource(f"{path}.scale")
    if path.endswith("embed_tokens"):
        return ParamSource(f"{path}.embedding")
    return ParamSource(f"{path}.kernel", (0, 2, 1) if ".experts." in path else (1, 0))
