"""The source plan of a load: the tensors that each leaf of the tree is made of, and how.

A family makes it, knowing the names in its files, and a format of weights refines it. All of it is
checked against the files' headers before memory is taken. Plans of memory read this file without
NumPy.
"""

import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.stack import Stack

FLOATS = ("float32", "bfloat16", "float16")
_BACKBONE = "model."
_HEAD = "lm_head."
_NO_HEAD = (
    ": the head, though config.json does not tie it to the embedding. Files of a model for vectors "
    'have none, and vectors read none: for these, give hf_overrides={"tie_word_embeddings": True}'
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """What a plan expects of a tensor in the files.

    Attributes:
        dtypes: names of those that it may have.
    """

    name: str
    shape: Shape
    dtypes: tuple[str, ...] = FLOATS


@dataclass(frozen=True)
class Source:
    """What one leaf is made of.

    Attributes:
        tensors: one or several; a tensor may also be part of several leaves.
        transform: a pure function of their NumPy arrays, in this order, to one of the leaf's shape;
            None for a single tensor as it is. The arrays are maps of the files: where the result is
            a view or a `Stack` of them, each device's slice alone is read; else the host holds the
            leaf whole.
    """

    tensors: tuple[Tensor, ...]
    transform: Callable[..., Any] | None = None

    def made_of(self, arrays: list[Any]) -> Any:
        """The leaf, in the dtype of the files."""
        return arrays[0] if self.transform is None else self.transform(*arrays)

    def followed_by(self, change: Callable[[Any], Any]) -> "Source":
        """The source of what a function makes of this leaf, in a dtype of the function's choice."""
        return Source(self.tensors, lambda *arrays: change(self.made_of([*arrays])))


SourcePlan = dict[str, Source]
"""By path in the parameter tree."""


def one_tensor_each(
    shapes: Mapping[str, Shape], names: Collection[str], tensor_name: Callable[[str], str]
) -> SourcePlan:
    """The plan of files that hold a tensor for each leaf.

    Args:
        names: of the files' tensors; a backbone that was saved alone has no prefix "model.".
        tensor_name: from a path to a name.
    """
    lacks_prefix = "embed_tokens.weight" in names

    def name(path: str) -> str:
        return tensor_name(path).removeprefix(_BACKBONE if lacks_prefix else "")

    return {path: Source((Tensor(name(path), shape),)) for path, shape in shapes.items()}


def cut_from(
    plan: SourcePlan, shapes: Mapping[str, Shape], fused: Mapping[str, tuple[str, ...]]
) -> SourcePlan:
    """A plan whose projections are rows of `fused` tensors: by a tensor's name, theirs in order."""
    cut = dict(plan)
    for whole, parts in fused.items():
        for path in (each for each in plan if each.rpartition(".")[2] == parts[0]):
            leaves = [f"{path.removesuffix(parts[0])}{part}" for part in parts]
            ends = list(itertools.accumulate((shapes[leaf][0] for leaf in leaves), initial=0))
            name = plan[path].tensors[0].name.replace(f".{parts[0]}.", f".{whole}.")
            tensor = Tensor(name, (ends[-1], *shapes[path][1:]))
            for leaf, rows in zip(leaves, itertools.pairwise(ends), strict=True):
                cut[leaf] = Source((tensor,), operator.itemgetter(slice(*rows)))
    return cut


def stacked_from(plan: SourcePlan, module: str) -> SourcePlan:
    """A plan whose leaves in modules of this name are stacks of tensors that files number."""
    part = f".{module}."

    def stack(source: Source) -> Source:
        (whole,) = source.tensors
        names = (whole.name.replace(part, f"{part}{i}.") for i in range(whole.shape[0]))
        return Source(tuple(Tensor(name, whole.shape[1:]) for name in names), Stack)

    return {path: stack(each) if part in path else each for path, each in plan.items()}


def missing_text(names: Sequence[str]) -> str:
    """What a message says of tensors that files lack: one of them by name."""
    if len(names) == 1:
        return f"tensor {names[0]!r:.120} is missing"
    return f"{len(names)} tensors are missing, the first is {names[0]!r:.120}"


def check_plan(plan: SourcePlan, entries: Mapping[str, Any], directory: Path) -> None:
    """Compare a plan with the files' headers.

    Raises:
        ModelLoadError: a tensor is missing, foreign, or of another shape or dtype; names the first.
    """
    wanted = {each.name: each for source in plan.values() for each in source.tensors}
    missing = [name for name in wanted if name not in entries]
    if missing:
        raise ModelLoadError(
            f"{directory}: {missing_text(missing)}"
            + (_NO_HEAD if all(name.startswith(_HEAD) for name in missing) else "")
        )
    for name, entry in entries.items():
        # A tied model's file may repeat the embedding as lm_head; old ones store RoPE's constants.
        if name not in wanted and name != "lm_head.weight" and "rotary_emb" not in name:
            raise ModelLoadError(
                f"{entry.file}: tensor {name!r:.120} is not in config.json's model"
            )
    for name, tensor in wanted.items():
        entry = entries[name]
        if entry.shape != tensor.shape:
            raise ModelLoadError(
                f"{entry.file}: {name} has shape {entry.shape}, config.json implies {tensor.shape}"
            )
        if entry.dtype.name not in tensor.dtypes:
            raise ModelLoadError(
                f"{entry.file}: {name} has dtype {entry.dtype.name}, config.json implies "
                f"{' or '.join(tensor.dtypes)}"
            )
