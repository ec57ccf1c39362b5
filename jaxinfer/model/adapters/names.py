"""Names of an adapter's matrices: PEFT's, and those of tunix and qwix."""

import functools
import re
from collections.abc import Iterable, Mapping

from jaxinfer.checks import show
from jaxinfer.model.adapters.matrices import Target

_NAME = re.compile(
    r"(?:.*\.)?layers\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<name>\w+)\."
    r"(?:lora_(?P<peft>[AB])(?:\.default)?(?:\.weight)?|(?:w|kernel)_lora_(?P<qwix>[ab]))"
)
_EXAMPLE = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
_LONGEST_SHOWN = 200
_PARTS = {"attn": "self_attn"}
"""tunix's names of parts of a layer."""


def paired(names: Iterable[str]) -> Mapping[Target, tuple[str, str]]:
    """The names of each projection's matrices, A and B; the same ones are read once.

    Raises:
        ValueError: a name is none of a matrix of LoRA, or a matrix has no other; names it.
    """
    return _paired(tuple(names))


@functools.lru_cache(maxsize=8)
def _paired(names: tuple[str, ...]) -> Mapping[Target, tuple[str, str]]:
    found: dict[Target, dict[str, str]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            shown = name if len(name) <= _LONGEST_SHOWN else show(name)
            raise ValueError(
                f"{shown} is no matrix of LoRA for a layer's projection; names are like {_EXAMPLE}"
            )
        part = _PARTS.get(match["part"], match["part"])
        target = Target(int(match["layer"]), part, match["name"])
        which = (match["peft"] or match["qwix"]).upper()
        if which in found.setdefault(target, {}):
            raise ValueError(f"{target} has two matrices {which}: {name}")
        found[target][which] = name
    for target, each in found.items():
        if len(each) != 2:
            missing = "A" if "B" in each else "B"
            raise ValueError(f"{target} has no matrix {missing}")
    return {target: (each["A"], each["B"]) for target, each in found.items()}


def is_transposed(name: str) -> bool:
    """Whether a matrix is stored ``[inputs, rank]`` or ``[rank, outputs]``, as qwix does."""
    return "_lora_" in name.rpartition(".")[2]
