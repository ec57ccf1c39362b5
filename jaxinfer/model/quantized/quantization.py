"""Quantized weights as a value of the config: which projections are codes, and of what form.

A projection that is quantized is a node of the tree: a dictionary of codes, scales and what else
its form has (`NODE`), where others are one array. How the files of a checkpoint hold these is for
`files.py` to say. Nothing here imports JAX.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from jaxinfer.checks import show
from jaxinfer.config import QuantizationScheme
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, MLP_PROJECTIONS

WEIGHT, SCALE, ZERO, GROUP, INPUT_SCALE = NODE = ("weight", "scale", "zero", "group", "input_scale")
"""The names of a quantized projection's arrays in the tree; `kernels.matmul.quantized` says what
each is."""

Codes = Literal["int8", "fp8", "int4"]
Inputs = Literal["token", "group", "tensor"]
Stored = Literal[
    "plain", "int-quantized", "float-quantized", "pack-quantized", "fp8", "awq", "gptq", "gptq_v2"
]
"""How files hold the weights: as plain ones, which are quantized when they are loaded; in a format
of compressed-tensors; or as Hugging Face's fp8, AutoAWQ or GPTQ do."""

_DTYPES: Mapping[Codes, str] = {"int8": "int8", "fp8": "float8_e4m3fn", "int4": "uint8"}
_FORMATS: Mapping[Codes, Stored] = {
    "int8": "int-quantized",
    "fp8": "float-quantized",
    "int4": "pack-quantized",
}
_PROJECTIONS = frozenset({*ATTENTION_PROJECTIONS, *MLP_PROJECTIONS, "lm_head"})
_PATTERN = "re:"
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class NodeArray(NamedTuple):
    """An array of a node before it has values.

    Attributes:
        axes: for each axis, which one of the plain weight it is split along with: the last two are
            outputs and inputs; None for one that is whole everywhere.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int | None, ...]


def _are_two_sizes(block: Any) -> bool:
    sizes = block if isinstance(block, tuple) else ()
    return len(sizes) == 2 and all(type(size) is int and size > 0 for size in sizes)


@dataclass(frozen=True)
class Quantization:
    """The form of quantized projections. Hashable.

    Attributes:
        codes: of weights: integers of 8 or 4 bits, or float8_e4m3fn.
        block: outputs and inputs of the weights that share a scale; None is one for each output.
            4-bit integers have groups of inputs, ``(1, inputs)``.
        zero_points: whether each group of 4-bit integers has a zero point, instead of 8.
        act_order: whether groups are of inputs in any order, as GPTQ's `desc_act` leaves them.
        inputs: how inputs of products are quantized to `codes`, too: with a scale for each "token",
            for each "group" of a token's inputs as long as a block, or for each "tensor", from the
            checkpoint. None leaves them as they are.
        ignore: projections that stay as they are, by their path or their name in files, or by "re:"
            and a regular expression that either begins with.
        stored: how the files hold the weights.
        one_scale: whether the files have one scale for each weight, which all outputs share.

    Raises:
        ValueError: there is no such form.
    """

    codes: Codes
    block: tuple[int, int] | None = None
    zero_points: bool = False
    act_order: bool = False
    inputs: Inputs | None = None
    ignore: tuple[str, ...] = ("lm_head",)
    stored: Stored = "plain"
    one_scale: bool = False

    def __post_init__(self) -> None:
        if self.codes not in _DTYPES:
            raise ValueError(f"codes must be one of {', '.join(_DTYPES)}, got {show(self.codes)}")
        if self.inputs not in (None, *get_args(Inputs)):
            wanted = ", ".join(get_args(Inputs))
            raise ValueError(f"inputs must be one of {wanted}, or None, got {show(self.inputs)}")
        block = self.block
        if block is not None and not _are_two_sizes(block):
            raise ValueError(f"block must be two sizes of at least 1, got {show(block)}")
        if self.codes != "int4" and (self.zero_points or self.act_order):
            raise ValueError("zero_points and act_order are of int4 weights alone")
        if self.codes == "int4" and (self.inputs or (block and block[0] != 1)):
            raise ValueError("int4 weights have groups of inputs, and inputs that stay as they are")
        if self.inputs == "group" and (block is None or self.codes != "fp8"):
            raise ValueError("inputs can be quantized in groups beside blocks of fp8 weights alone")
        if not isinstance(self.ignore, tuple) or not all(isinstance(n, str) for n in self.ignore):
            raise ValueError(f"ignore must be a list of names, got {show(self.ignore)}")
        for name in self.ignore:
            if name.startswith(_PATTERN):
                try:
                    re.compile(name.removeprefix(_PATTERN))
                except re.error as error:
                    raise ValueError(f"ignore has {show(name)}: {error}") from None

    @classmethod
    def scheme(cls, name: str, ignore: Iterable[str] = ("lm_head",)) -> "Quantization":
        """The form that a name stands for: one of `SCHEMES`.

        Raises:
            ValueError: there is none of this name; lists them.
        """
        for known, form in SCHEMES.items():
            if known == name:
                return replace(form, ignore=tuple(ignore))
        raise ValueError(f"quantization must be one of {', '.join(SCHEMES)}, got {show(name)}")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Quantization":
        """What `dataclasses.asdict` made values of, which JSON may have carried."""
        block = values["block"]
        tuples = {"ignore": tuple(values["ignore"]), "block": block and tuple(block)}
        return cls(**{each.name: values[each.name] for each in fields(cls)} | tuples)

    def takes(self, path: str) -> bool:
        """Whether the array at a path of the unquantized tree is a node in this one."""
        if path.rpartition(".")[2] not in _PROJECTIONS:
            return False
        for ignored in self.ignore:
            names = _names_in_files(path, ignored)
            pattern = ignored.removeprefix(_PATTERN)
            is_pattern = pattern != ignored
            if any(re.match(pattern, n) if is_pattern else n == ignored for n in names):
                return False
        return True

    def node(self, *shape: int) -> dict[str, NodeArray]:
        """The arrays of a projection, by their names in `NODE`.

        Args:
            shape: outputs and inputs; before them X, where experts are stacked.
        """
        *stack, outputs, inputs = shape
        one, ahead = self._node(outputs, inputs), len(stack)
        return {
            name: NodeArray(
                (*stack, *each.shape),
                each.dtype,
                (*range(ahead), *(None if axis is None else axis + ahead for axis in each.axes)),
            )
            for name, each in one.items()
        }

    def _node(self, outputs: int, inputs: int) -> dict[str, NodeArray]:
        width = inputs // 2 if self.codes == "int4" else inputs
        node = {WEIGHT: NodeArray((outputs, width), _DTYPES[self.codes], (0, 1))}
        if self.block is None:
            node[SCALE] = NodeArray((outputs,), "float32", (0,))
        else:
            # Inputs in any order may be in any group: then every device has all groups.
            along = None if self.act_order else 1
            shape = (outputs // self.block[0], inputs // self.block[1])
            node[SCALE] = NodeArray(shape, "float32", (0, along))
            if self.zero_points:
                node[ZERO] = NodeArray(shape, "uint8", (0, along))
        if self.act_order:
            node[GROUP] = NodeArray((inputs,), "int32", (1,))
        if self.inputs == "tensor":
            node[INPUT_SCALE] = NodeArray((), "float32", ())
        return node

    @classmethod
    def of_node(
        cls, arrays: Mapping[str, tuple[tuple[int, ...], str]]
    ) -> tuple["Quantization", tuple[int, ...]]:
        """The form of a node of such shapes and dtypes, as `node` describes it, and `node`'s shape.

        How inputs are quantized is not seen in a node, unless it has a scale of theirs.
        """
        (*stack, outputs, width), dtype = arrays[WEIGHT]
        codes: Codes = next(codes for codes, known in _DTYPES.items() if known == dtype)
        inputs = 2 * width if codes == "int4" else width
        scale = arrays[SCALE][0][len(stack) :]
        form = cls(
            codes,
            None if len(scale) == 1 else (outputs // scale[0], inputs // scale[1]),
            zero_points=ZERO in arrays,
            act_order=GROUP in arrays,
            inputs="tensor" if INPUT_SCALE in arrays else None,
        )
        return form, (*stack, outputs, inputs)

    def obstacle(self, outputs: int, inputs: int) -> str | None:
        """The reason why a weight of this shape, or a device's share of one, has no such form."""
        rows, columns = self.block or (1, 2 if self.codes == "int4" else 1)
        if self.act_order:
            columns = 2
        if outputs % rows:
            return f"its {outputs} outputs are no multiple of blocks of {rows}"
        if inputs % columns:
            return f"its {inputs} inputs are no multiple of groups of {columns}"
        return None

    def saved(self) -> "Quantization":
        """This form as files of compressed-tensors hold it, which is how it is written."""
        return replace(self, stored=_FORMATS[self.codes], one_scale=False)


SCHEMES: Mapping[QuantizationScheme, Quantization] = {
    "fp8": Quantization("fp8", (128, 128), inputs="group"),
    "int8": Quantization("int8"),
    "int4": Quantization("int4", (1, 128)),
    "FP8_DYNAMIC": Quantization("fp8", inputs="token"),
    "W8A8": Quantization("int8", inputs="token"),
    "W4A16_ASYM": Quantization("int4", (1, 128), zero_points=True),
}
"""Forms by name: short ones, and llm-compressor's names of others."""


def _names_in_files(path: str, ignored: str) -> list[str]:
    """A projection's path, and its names in files of models that see, or that fuse projections.

    Fused ones count where they are meant: `up_proj` is also the end of `gate_up_proj`.
    """
    names = [path]
    parent, _, name = path.rpartition(".")
    fused = [whole for whole, parts in _FUSED.items() if name in parts and whole in ignored]
    names += [f"{parent}.{whole}" for whole in fused]
    below = [each.removeprefix("model.") for each in names if each.startswith("model.")]
    names += [f"model.language_model.{each}" for each in below]
    return names + [f"language_model.{each}" for each in names if "language_model" not in each]


def with_scheme[Config: Any](config: Config, name: str) -> Config:
    """A `ModelConfig` of plain weights, whose projections are quantized when they are loaded.

    Raises:
        ValueError: there is no scheme of this name, the weights are quantized already, or they
            don't fit it; names the schemes that they fit.
    """
    if config.quantization is not None:
        raise ValueError(
            f"quantization={name!r} quantizes plain weights, and the model's are "
            f"{config.quantization.codes} already; leave it out"
        )
    form = Quantization.scheme(name)
    try:
        return replace(config, quantization=form)
    except ValueError as error:
        fit = [other for other in SCHEMES if _fits(config, other)]
        fix = f"schemes that fit: {', '.join(fit)}" if fit else "no scheme fits; leave it out"
        raise ValueError(f"quantization={name!r}: {error}; {fix}") from None


def _fits(config: Any, name: QuantizationScheme) -> bool:
    try:
        replace(config, quantization=SCHEMES[name])
    except ValueError:
        return False
    return True


def plain_path(path: str) -> str:
    """The path in the unquantized tree of what an array of any tree is part of."""
    parent, _, name = path.rpartition(".")
    return parent if name in NODE else path


def is_scale(path: str) -> bool:
    """Whether the array at a path of a tree holds scales."""
    return path.rpartition(".")[2] in (SCALE, INPUT_SCALE)


def plain_leaves[Leaf](leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The leaves of an unquantized tree by path, from those of any tree: codes are weights."""
    return {
        plain_path(path): leaf
        for path, leaf in leaves.items()
        if path.rpartition(".")[2] not in NODE[1:]
    }
