"""Refuses quantized files that don't go with config.json, naming tensor, file and fix."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.source_plan import FLOATS, SourcePlan
from jaxinfer.model.projections import HEAD
from jaxinfer.model.quantized.quantization import Quantization

_AGAIN = "copy the checkpoint again, or quantize the plain weights (jaxinfer convert --quantize)"
_PARTS = (
    *("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_g_idx", "weight_packed"),
    *("weight_shape", "input_scale", "activation_scale", "qweight", "qzeros", "scales", "g_idx"),
)
"""The last parts of names of tensors that files of quantized weights alone have."""


def check_mismatches(
    plain: SourcePlan, plan: SourcePlan, form: Quantization | None, entries: Mapping[str, Any]
) -> None:
    """Refuse tensors of quantized files that config.json says otherwise of; from headers alone.

    What is wrong in other ways is for `check_plan` to find.

    Args:
        plain: of the unquantized tree.
        plan: of this tree.
        form: of the files' weights; None where they must be plain.
        entries: the files' headers by name.

    Raises:
        ModelLoadError: one line.
    """
    wanted = {tensor.name: None for source in plan.values() for tensor in source.tensors}
    paths = {tensor.name: path for path, each in plain.items() for tensor in each.tensors}
    for name, entry in entries.items():
        if name not in wanted and (why := _foreign(name, form, paths)):
            raise ModelLoadError(f"{entry.file}: tensor {name!r:.120} {why}")
    if form is not None:
        _check_missing([name for name in wanted if name not in entries], form, paths, entries)


def _check_missing(
    missing: list[str], form: Quantization, paths: Mapping[str, str], entries: Mapping[str, Any]
) -> None:
    """Refuse plain weights in the place of codes, and weights that lack one of their tensors."""
    of_module = {name.rpartition(".")[0]: name for name in entries}
    taken = [name for name, path in paths.items() if name.endswith(".weight") and form.takes(path)]
    plain = {name for name in taken if name in entries and entries[name].dtype.name in FLOATS}
    for name in missing:
        module = name.rpartition(".")[0]
        if (weight := f"{module}.weight") in plain:
            others = [each for each in taken if paths[each] == paths[weight]]
            if len(plain) == len(taken):
                fix = f"as all are; take quantization_config ({form.codes}) out of config.json"
            elif not plain.issuperset(others):  # of the experts of one layer
                fix = f"and others beside it are {form.codes}; {_AGAIN}"
            else:
                own = _ignorable(form, module, paths[weight])
                fix = (
                    f"and config.json's quantization_config says {form.codes}; put {own!r:.120} "
                    f"into its {_key(form)}"
                )
            raise ModelLoadError(f"{entries[weight].file}: {weight!r:.120} is plain, {fix}")
        if module in of_module:
            beside = of_module[module]
            raise ModelLoadError(
                f"{entries[beside].file}: lacks {name!r:.120}, which belongs to {beside!r:.120}; "
                f"{_AGAIN}"
            )


def _foreign(name: str, form: Quantization | None, paths: Mapping[str, str]) -> str:
    """What a message says of a tensor that no plan has; nothing if it is not of quantization."""
    module, _, part = name.rpartition(".")
    if part not in _PARTS:
        return ""
    if form is None:
        return (
            "is of quantized weights, and config.json has no quantization_config; take config.json "
            "from the same checkpoint"
        )
    path = HEAD if module == HEAD else paths.get(f"{module}.weight", "")
    if path == HEAD:
        return f"is of a quantized head; {_head_fix(form, f'{HEAD}.weight' not in paths)}"
    if not form.takes(path) and replace(form, ignore=()).takes(path):
        return (
            f"is of quantized weights, and quantization_config's {_key(form)} says that they are "
            "plain; take them out of it"
        )
    return ""


def _head_fix(form: Quantization, is_tied: bool) -> str:
    """What reads a quantized head, if anything does."""
    if _key(form) != "ignore" or form.inputs is not None:
        return "this format's head must be plain: save the checkpoint with lm_head left out"
    fixes = ["set tie_word_embeddings to false"] if is_tied else []
    fixes += [] if form.takes(HEAD) else ["take lm_head out of quantization_config's ignore"]
    return f"in config.json, {' and '.join(fixes)}"


def _key(form: Quantization) -> str:
    """The list of plain modules in a `quantization_config`."""
    return "ignore" if form.stored.endswith("quantized") else "modules_to_not_convert"


def _ignorable(form: Quantization, module: str, path: str) -> str:
    """The name that takes a projection out of a form: its module's in the files, or its path."""
    is_known = not replace(form, ignore=(*form.ignore, module)).takes(path)
    return module if is_known else path
