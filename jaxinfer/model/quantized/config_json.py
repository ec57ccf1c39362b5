"""The `quantization_config` of a config.json, read and written.

Each method of quantization has its reader. What is written is compressed-tensors'.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.checks import show
from jaxinfer.model.projections import HEAD, PROJECTIONS
from jaxinfer.model.quantized.quantization import Codes, Quantization, Stored

_HERE = "quantization_config"
_GROUPS = "config_groups"


def read_quantization(value: Any) -> Quantization | None:
    """The form of weights that a config.json's `quantization_config` says; None for plain ones.

    Raises:
        ValueError: it is another one than this engine serves; names the key, and what is served.
    """
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"{_HERE} must be an object, got {show(value)}")
    try:
        method = _one_of(value, "", "quant_method", *_READERS)
        return _READERS[method](value)
    except ValueError as error:
        raise ValueError(f"{_HERE}.{error}") from None


def quantization_config(form: Quantization) -> dict[str, Any]:
    """The `quantization_config` of a config.json whose files hold weights of a form."""
    weights = {
        "num_bits": 4 if form.codes == "int4" else 8,
        "type": "float" if form.codes == "fp8" else "int",
        "symmetric": not form.zero_points,
        "strategy": "channel",
        "group_size": None,
        "block_structure": None,
        "dynamic": False,
        "actorder": "group" if form.act_order else None,
    }
    if form.block is not None and form.block[0] == 1:
        weights |= {"strategy": "group", "group_size": form.block[1]}
    elif form.block is not None:
        weights |= {"strategy": "block", "block_structure": list(form.block)}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": _inputs_of(form)}
    return {
        "quant_method": "compressed-tensors",
        "format": form.saved().stored,
        "quantization_status": "compressed",
        _GROUPS: {"group_0": group | {"output_activations": None}},
        "ignore": list(form.ignore),
        "kv_cache_scheme": None,
    }


def _inputs_of(form: Quantization) -> dict[str, Any] | None:
    if form.inputs is None:
        return None
    return {
        "num_bits": 8,
        "type": "float" if form.codes == "fp8" else "int",
        "symmetric": True,
        "strategy": form.inputs,
        "group_size": form.block[1] if form.inputs == "group" and form.block else None,
        "dynamic": form.inputs != "tensor",
    }


def _compressed_tensors(given: Mapping[str, Any]) -> Quantization:
    for name in ("sparsity_config", "transform_config"):
        if given.get(name) and (name, _format_of(given[name])) != ("sparsity_config", "dense"):
            raise ValueError(f"{name} is {show(given[name])}, which is not supported")
    groups = _object(given.get(_GROUPS), _GROUPS)
    if len(groups) != 1:
        raise ValueError(
            f"{_GROUPS} has {len(groups)} groups; one is supported, for all Linear layers"
        )
    ((name, group),) = groups.items()
    where = f"{_GROUPS}.{name}"
    group = _object(group, where)
    if not _are_all_projections(_list(group, where, "targets")):
        raise ValueError(
            f"{where}.targets is {show(group.get('targets'))}; it must be all Linear layers, of "
            "which ignore takes some out"
        )
    if group.get("output_activations") is not None:
        raise ValueError(f"{where}.output_activations is {show(group['output_activations'])}")
    stored = _one_of(
        group if group.get("format") else given,
        where if group.get("format") else "",
        "format",
        *("int-quantized", "float-quantized", "pack-quantized", "naive-quantized"),
    )
    weights = _object(group.get("weights"), f"{where}.weights")
    if stored == "naive-quantized":
        stored = "float-quantized" if weights.get("type") == "float" else "int-quantized"
    where_weights = f"{where}.weights"
    codes = _codes(weights, where_weights, stored)
    symmetric = weights.get("symmetric", True)
    if not (symmetric is True or (symmetric is False and codes == "int4")):
        raise ValueError(f"{where_weights}.symmetric is {show(symmetric)}; it must be true")
    if weights.get("dynamic"):
        raise ValueError(f"{where_weights}.dynamic is {show(weights['dynamic'])}; it must be false")
    block, one_scale = _block(weights, where_weights)
    orders = (None, False, "weight", "static", *(("group", "dynamic") if codes == "int4" else ()))
    order = _one_of(weights, where_weights, "actorder", *orders)
    return Quantization(
        codes,
        block,
        zero_points=not symmetric,
        act_order=order in ("group", "dynamic"),
        inputs=_inputs(group.get("input_activations"), f"{where}.input_activations", codes, block),
        ignore=tuple(_list(given, "", "ignore")),
        stored=stored,
        one_scale=one_scale,
    )


def _codes(weights: Mapping[str, Any], where: str, stored: Stored) -> Codes:
    bits = _one_of(weights, where, "num_bits", 8, *([4] if stored == "pack-quantized" else []))
    _one_of(weights, where, "type", "float" if stored == "float-quantized" else "int")
    if stored == "float-quantized":
        return "fp8"
    return "int4" if bits == 4 else "int8"


def _block(weights: Mapping[str, Any], where: str) -> tuple[tuple[int, int] | None, bool]:
    """Outputs and inputs of a scale, and whether one is for the whole weight."""
    size = weights.get("group_size")
    # As compressed-tensors infers one that is not said.
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    said = weights if weights.get("strategy") is not None else {"strategy": inferred}
    strategy = _one_of(said, where, "strategy", "channel", "tensor", "group", "block")
    if strategy == "group":
        return (1, _size(size, f"{where}.group_size")), False
    if strategy == "block":
        return _sizes(weights.get("block_structure"), f"{where}.block_structure"), False
    return None, strategy == "tensor"


def _inputs(given: Any, where: str, codes: Codes, block: tuple[int, int] | None) -> Any:
    """How inputs are quantized: `Quantization.inputs`."""
    if given is None:
        return None
    given = _object(given, where)
    if codes == "int4":
        raise ValueError(f"{where} is {show(given)}; beside 4-bit weights it must be null")
    _one_of(given, where, "num_bits", 8)
    _one_of(given, where, "type", "float" if codes == "fp8" else "int")
    _one_of(given, where, "symmetric", True)
    dynamic = _one_of(given, where, "dynamic", True, False)
    if not dynamic:
        return _one_of(given, where, "strategy", "tensor")
    strategy = _one_of(given, where, "strategy", "token", "group")
    if strategy == "group" and (block is None or given.get("group_size") != block[1]):
        raise ValueError(
            f"{where}.group_size is {show(given.get('group_size'))}; it must be that of weights"
        )
    return strategy


def _hf_fp8(given: Mapping[str, Any]) -> Quantization:
    if given.get("fmt") is not None:
        _one_of(given, "", "fmt", "e4m3")
    scheme = _one_of(given, "", "activation_scheme", "dynamic", "static")
    block = given.get("weight_block_size")
    if block is not None:
        _one_of(given, "", "activation_scheme", "dynamic")
        block = _sizes(block, "weight_block_size")
    inputs = "tensor" if scheme == "static" else "token" if block is None else "group"
    return Quantization(
        "fp8", block, inputs=inputs, ignore=_modules(given), stored="fp8", one_scale=block is None
    )


def _awq(given: Mapping[str, Any]) -> Quantization:
    _one_of(given, "", "w_bit" if "bits" not in given and "w_bit" in given else "bits", 4)
    if given.get("version") is not None:
        _one_of({"version": str(given["version"]).lower()}, "", "version", "gemm")
    zeros = _one_of(given, "", "zero_point", True, False)
    block = _group_size(given)
    return Quantization(
        "int4", block, zero_points=zeros, ignore=_modules(given, anywhere=True), stored="awq"
    )


def _gptq(given: Mapping[str, Any]) -> Quantization:
    bits = _one_of(given, "", "bits", 4, 8)
    symmetric = _one_of(given, "", "sym", True, *([False] if bits == 4 else []))
    order = _one_of(given, "", "desc_act", False, None, *([True] if bits == 4 else []))
    key = "checkpoint_format" if given.get("checkpoint_format") is not None else "format"
    form = _one_of(given, "", key, None, "gptq", "gptq_v2")
    if given.get("dynamic"):
        raise ValueError(f"dynamic is {show(given['dynamic'])}; mixed formats are not supported")
    if given.get("lm_head"):
        raise ValueError("lm_head is true; a quantized head is not supported in GPTQ's files")
    return Quantization(
        "int4" if bits == 4 else "int8",
        _group_size(given),
        zero_points=not symmetric,
        act_order=bool(order),
        ignore=(*_modules(given, anywhere=True), *_outside(given)),
        stored=form or "gptq",
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _hf_fp8,
    "awq": _awq,
    "gptq": _gptq,
}


def _group_size(given: Mapping[str, Any]) -> tuple[int, int] | None:
    name = "q_group_size" if "group_size" not in given and "q_group_size" in given else "group_size"
    size = given.get(name)
    return None if size == -1 else (1, _size(size, name))


def _modules(given: Mapping[str, Any], anywhere: bool = False) -> tuple[str, ...]:
    """`ignore` of names that are a module's, or part of its path: as transformers matches them."""
    names = _list(given, "", "modules_to_not_convert") + _list(given, "", "ignored_layers")
    pattern = "re:.*{}" if anywhere else r"re:(.*\.)?{}(\.|$)"
    return ("lm_head", *(pattern.format(re.escape(name)) for name in names if name != "lm_head"))


def _outside(given: Mapping[str, Any]) -> tuple[str, ...]:
    """`ignore` of the projections that GPTQ left out, where it names the others."""
    key = "modules_in_block_to_quantize"
    value = given.get(key) or []
    lists = value if all(isinstance(each, list) for each in value) else [value]
    names = [name for each in lists for name in _list({key: each}, "", key)]
    layer = [part for part in PROJECTIONS if part != HEAD] if names else []
    return tuple(rf"re:.*\.{re.escape(part)}$" for part in layer if part not in names)


def _are_all_projections(targets: list[str]) -> bool:
    """Whether they are the class of all projections, or patterns that take each of them."""
    patterns = [each.removeprefix("re:") for each in targets if each.startswith("re:")]
    paths = [f"model.layers.0.{part}" for part in PROJECTIONS if part != HEAD]
    return "Linear" in targets or all(
        any(re.match(pattern, path) for pattern in patterns) for path in paths
    )


def _format_of(value: Any) -> Any:
    return value.get("format") if isinstance(value, Mapping) else None


def _size(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{where} is {show(value)}; it must be an integer of at least 1")
    return value


def _sizes(value: Any, where: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{where} is {show(value)}; it must be two integers")
    return _size(value[0], where), _size(value[1], where)


def _one_of(given: Mapping[str, Any], where: str, key: str, *allowed: Any) -> Any:
    """The value of a key, one of those that are allowed; a missing one is None."""
    value = given.get(key)
    if any(value is each or (value == each and type(value) is type(each)) for each in allowed):
        return value
    name = f"{where}.{key}".lstrip(".")
    raise ValueError(f"{name} is {show(value)}; supported: {', '.join(map(show, allowed))}")


def _list(given: Mapping[str, Any], where: str, key: str) -> list[Any]:
    value = given.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(
            f"{where}.{key}".lstrip(".") + f" must be a list of names, got {show(value)}"
        )
    return value


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, got {show(value)}")
    return value
