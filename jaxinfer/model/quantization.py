"""Quantized weights as a value of the config: which projections are integers, and in which files.

compressed-tensors' int8 weights with one scale for each output are the one format that is served.
Nothing here imports JAX; `int8_params.py` makes the arrays.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer.checks import show
from jaxinfer.model.checkpoint.source_plan import Source, SourcePlan
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, MLP_PROJECTIONS

WEIGHT, SCALE = "weight", "scale"
"""The names of a quantized projection's arrays in the tree, where others are one array."""

_PROJECTIONS = frozenset({*ATTENTION_PROJECTIONS, *MLP_PROJECTIONS, "lm_head"})
_IN_FILES = "_scale"
_PATTERN = "re:"
_SUPPORTED = (
    "supported are compressed-tensors' int8 weights with one symmetric scale for each output and "
    "unquantized activations (format int-quantized)"
)
_WEIGHTS: dict[str, tuple[Any, ...]] = {
    "num_bits": (8,),
    "type": ("int",),
    "symmetric": (True,),
    "strategy": ("channel",),
    "group_size": (None,),
    "block_structure": (None,),
    "dynamic": (False, None),
    "actorder": (None,),
}


@dataclass(frozen=True)
class Int8Weights:
    """Projections as 8-bit integers, each output with a float32 scale. Hashable.

    The tree has ``{"weight": int8 [O, I], "scale": float32 [O]}`` in place of each, and the files
    ``X.weight`` and ``X.weight_scale`` ``[O, 1]``.

    Attributes:
        ignore: projections that stay as they are, by their path, or by "re:" and a regular
            expression that their path begins with.

    Raises:
        ValueError: it is no tuple of such texts.
    """

    ignore: tuple[str, ...] = ("lm_head",)

    def __post_init__(self) -> None:
        if not isinstance(self.ignore, tuple) or not all(isinstance(n, str) for n in self.ignore):
            raise ValueError(f"ignore must be a list of names, got {show(self.ignore)}")
        for name in self.ignore:
            if name.startswith(_PATTERN):
                try:
                    re.compile(name.removeprefix(_PATTERN))
                except re.error as error:
                    raise ValueError(f"ignore has {show(name)}: {error}") from None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Int8Weights":
        """What `dataclasses.asdict` made values of, which JSON may have carried."""
        return cls(tuple(values["ignore"]))

    def takes(self, path: str) -> bool:
        """Whether the array at a path of the unquantized tree is integers in this one."""
        if path.rpartition(".")[2] not in _PROJECTIONS:
            return False
        return not any(
            re.match(name.removeprefix(_PATTERN), path)
            if name.startswith(_PATTERN)
            else name == path
            for name in self.ignore
        )

    def source_plan(self, plan: SourcePlan) -> SourcePlan:
        """The plan of quantized files, from the plan of plain ones."""
        quantized: SourcePlan = {}
        for path, source in plan.items():
            if self.takes(path):
                quantized[f"{path}.{WEIGHT}"] = _integers(source)
                quantized[f"{path}.{SCALE}"] = _scales(source)
            else:
                quantized[path] = source
        return quantized

    def to_hf(self) -> dict[str, Any]:
        """The `quantization_config` of a config.json that says this."""
        weights = {name: values[0] for name, values in _WEIGHTS.items()}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
        return {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group | {"output_activations": None}},
            "ignore": list(self.ignore),
            "kv_cache_scheme": None,
        }


def plain_leaves[Leaf](leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The leaves of an unquantized tree by path, from those of any tree: integers are weights."""
    return {
        path.removesuffix(f".{WEIGHT}"): leaf for path, leaf in leaves.items() if not is_scale(path)
    }


def is_scale(path: str) -> bool:
    """Whether the array at a path of a tree holds scales."""
    return path.endswith(f".{SCALE}")


def saved_name(path: str, tensor_name: Callable[[str], str]) -> str:
    """The name in the files of the array at a path of any tree."""
    plain, _, part = path.rpartition(".")
    if is_scale(path):
        return tensor_name(plain) + _IN_FILES
    return tensor_name(plain if part == WEIGHT else path)


def read_quantization(value: Any) -> Int8Weights | None:
    """The format that a config.json's `quantization_config` asks for; None for plain weights.

    Raises:
        ValueError: it is another one than this engine serves; names the key, and what is served.
    """
    if not value:
        return None
    where = "quantization_config"
    _expect(value, where, {"quant_method": ("compressed-tensors",)})
    given = _object(value, where)
    _expect(given, where, {"format": ("int-quantized",), "kv_cache_scheme": (None,)})
    for name in ("sparsity_config", "transform_config"):
        if given.get(name):
            raise ValueError(f"{where}.{name} is {show(given[name])}; {_SUPPORTED}")
    groups = _object(given.get("config_groups"), f"{where}.config_groups")
    if len(groups) != 1:
        raise ValueError(f"{where}.config_groups has {len(groups)} groups; {_SUPPORTED}, in one")
    ((name, group),) = groups.items()
    where = f"{where}.config_groups.{name}"
    no_activations = {"input_activations": (None,), "output_activations": (None,)}
    _expect(group, where, {"targets": (["Linear"],)} | no_activations)
    if group.get("format") is not None:
        _expect(group, where, {"format": ("int-quantized",)})
    _expect(group.get("weights"), f"{where}.weights", _WEIGHTS)
    ignore = given.get("ignore") or []
    if not isinstance(ignore, list):
        raise ValueError(f"quantization_config.ignore must be a list, got {show(ignore)}")
    try:
        return Int8Weights(tuple(ignore))
    except ValueError as error:
        raise ValueError(f"quantization_config.{error}") from None


def _expect(given: Any, where: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise unless each key of an object has one of its allowed values; a missing one is None."""
    for key, values in allowed.items():
        value = _object(given, where).get(key)
        if not any(
            value is each or (value == each and type(value) is type(each)) for each in values
        ):
            raise ValueError(f"{where}.{key} is {show(value)}; {_SUPPORTED}")


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, got {show(value)}")
    return value


def _integers(source: Source) -> Source:
    tensors = tuple(replace(each, dtypes=("int8",)) for each in source.tensors)
    return replace(source, tensors=tensors)


def _scales(source: Source) -> Source:
    """Scales ``[O]`` of a projection: cut and joined as its weight is, of files' ``[O, 1]``."""
    tensors = tuple(
        replace(each, name=each.name + _IN_FILES, shape=(each.shape[0], 1))
        for each in source.tensors
    )
    return Source(tensors, lambda *arrays: source.made_of(list(arrays)).reshape(-1))
