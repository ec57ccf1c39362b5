"""The source plan of quantized files: the tensors that each array of a node is made of.

A family's plan says of which plain tensors a projection is made, as rows of one or of several.
Each way of storing weights says what there is in place of such a tensor, with what makes its arrays
as a node has them; rows are then cut from these as they are from plain ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.source_plan import Source, SourcePlan, Tensor
from jaxinfer.model.checkpoint.stack import Stack
from jaxinfer.model.quantized.quantization import (
    GROUP,
    INPUT_SCALE,
    SCALE,
    WEIGHT,
    ZERO,
    Quantization,
)


class Part(NamedTuple):
    """What an array of a node is made of, in the files of one plain tensor.

    Attributes:
        tensors: in place of the plain one.
        make: ``(*arrays) -> array``, for all outputs of the plain tensor.
    """

    tensors: tuple[Tensor, ...]
    make: Callable[..., Any]


Parts = dict[str, Part]
"""By names of `NODE`."""


def quantized_plan(
    plan: SourcePlan, quantization: Quantization, entries: Mapping[str, Any]
) -> SourcePlan:
    """The plan of quantized files, from that of plain ones.

    Args:
        plan: of the unquantized tree.
        entries: the files' headers by name: some tensors may be there or not.
    """
    parts_of = _STORED[quantization.stored]
    known = {tensor.name for source in plan.values() for tensor in source.tensors}
    others = {name: entry for name, entry in entries.items() if name not in known}
    quantized: SourcePlan = {}
    for path, source in plan.items():
        if not quantization.takes(path):
            quantized[path] = source
            continue
        found = [parts_of(quantization, tensor, others) for tensor in source.tensors]
        for name in found[0]:
            own = [each[name] for each in found]
            quantized[f"{path}.{name}"] = _source(name, source, own)
    return quantized


def _source(name: str, source: Source, parts: list[Part]) -> Source:
    """One array of a node: made of each plain tensor's, and cut or joined as these are."""
    tensors = tuple(tensor for part in parts for tensor in part.tensors)

    def transform(*arrays: Any) -> Any:
        rest = iter(arrays)
        made = [part.make(*(next(rest) for _ in part.tensors)) for part in parts]
        if name in (GROUP, INPUT_SCALE):
            return made[0]
        return source.made_of(made) if source.transform is Stack else _of_outputs(source, made)

    return Source(tensors, transform)


def _of_outputs(source: Source, made: list[Any]) -> Any:
    """`source.made_of` arrays with a row for each block of outputs."""
    sizes = [
        tensor.shape[0] // len(array) for tensor, array in zip(source.tensors, made, strict=True)
    ]
    if source.transform is None or set(sizes) == {1}:
        return source.made_of(made)
    whole = [array.repeat(size, axis=0) for array, size in zip(made, sizes, strict=True)]
    cut = source.made_of(whole).reshape(-1, sizes[0], *made[0].shape[1:])
    if (cut != cut[:, :1]).any():
        raise ModelLoadError(f"{source.tensors[0].name} is cut within blocks of {sizes[0]} outputs")
    return cut[:, 0]


def _as_it_is(array: Any) -> Any:
    return array


def _flat(array: Any) -> Any:
    return array.reshape(-1)


def _module(tensor: Tensor) -> str:
    return tensor.name.removesuffix(".weight")


def _present(tensor: Tensor, names: tuple[str, ...], others: Mapping[str, Any]) -> str:
    """The first of several names beside a tensor that the files have, or the first of all."""
    known = [f"{_module(tensor)}.{name}" for name in names]
    return next((name for name in known if name in others), known[0])


def _one_number(name: str, others: Mapping[str, Any]) -> Tensor:
    """A tensor of one element, with an axis or without."""
    shape = () if name in others and others[name].shape == () else (1,)
    return Tensor(name, shape)


def _scales(name: str, form: Quantization, tensor: Tensor, others: Mapping[str, Any]) -> Part:
    """Scales ``[O, 1]``, of blocks, or one for the whole weight."""
    outputs, inputs = tensor.shape
    if form.one_scale:
        one = _one_number(name, others)
        return Part((one,), lambda scale: scale.reshape(1).repeat(outputs))
    if form.block is None:
        return Part((Tensor(name, (outputs, 1)),), _flat)
    rows, columns = form.block
    return Part((Tensor(name, (outputs // rows, inputs // columns)),), _as_it_is)


def _codes_and_scales(
    form: Quantization,
    tensor: Tensor,
    others: Mapping[str, Any],
    scale_names: tuple[str, ...],
    input_names: tuple[str, ...],
) -> Parts:
    """Codes of eight bits as they are, under the name of the plain weight, and scales.

    Scales have the first of their names that the files have.
    """
    codes = replace(tensor, dtypes=(form.node(*tensor.shape)[WEIGHT].dtype,))
    parts = {
        WEIGHT: Part((codes,), _as_it_is),
        SCALE: _scales(_present(tensor, scale_names, others), form, tensor, others),
    }
    if form.inputs == "tensor":
        one = _one_number(_present(tensor, input_names, others), others)
        parts[INPUT_SCALE] = Part((one,), lambda scale: scale.reshape(()))
    return parts


def _compressed(form: Quantization, tensor: Tensor, others: Mapping[str, Any]) -> Parts:
    """compressed-tensors' int-quantized and float-quantized."""
    return _codes_and_scales(form, tensor, others, ("weight_scale",), ("input_scale",))


def _fp8(form: Quantization, tensor: Tensor, others: Mapping[str, Any]) -> Parts:
    """Hugging Face's fp8, in its names or vLLM's; weights are multiplied by `weight_scale_inv`."""
    names = ("weight_scale_inv", "weight_scale"), ("activation_scale", "input_scale")
    return _codes_and_scales(form, tensor, others, *names)


def _packed(form: Quantization, tensor: Tensor, others: Mapping[str, Any]) -> Parts:
    """compressed-tensors' pack-quantized: integers of 4 or 8 bits in int32, along inputs."""
    from jaxinfer.model.quantized import packing

    outputs, inputs = tensor.shape
    bits, module = 4 if form.codes == "int4" else 8, _module(tensor)
    words = Tensor(f"{module}.weight_packed", (outputs, -(-inputs * bits // 32)), ("int32",))
    size = Tensor(f"{module}.weight_shape", (2,), ("int64", "int32"))

    def make(packed: Any, shape: Any) -> Any:
        if tuple(shape.tolist()) != tensor.shape:
            raise ModelLoadError(
                f"{size.name} is {shape.tolist()}, config.json implies {list(tensor.shape)}"
            )
        codes = packing.bytes_of(packed)[:, : inputs * bits // 8]
        return codes if bits == 4 else packing.signed(codes)

    parts = {
        WEIGHT: Part((words, size), make),
        SCALE: _scales(f"{module}.weight_scale", form, tensor, others),
    }
    if form.zero_points:
        groups = inputs // (form.block or (1, inputs))[1]
        zeros = Tensor(f"{module}.weight_zero_point", (-(-outputs // 8), groups), ("int32",))
        parts[ZERO] = Part(
            (zeros,), lambda words: packing.unpack(packing.bytes_of(words.T))[:, :outputs].T
        )
    if form.act_order:
        parts[GROUP] = _group(Tensor(f"{module}.weight_g_idx", (inputs,), ("int32",)), form)
    return parts


def _awq(form: Quantization, tensor: Tensor, others: Mapping[str, Any]) -> Parts:
    """AutoAWQ's ("gemm"): integers of 4 bits in int32 along outputs, interleaved."""
    from jaxinfer.model.quantized import packing

    (outputs, inputs), module = tensor.shape, _module(tensor)
    groups = inputs // (form.block or (1, inputs))[1]
    words = Tensor(f"{module}.qweight", (inputs, outputs // 8), ("int32",))
    scales = Tensor(f"{module}.scales", (groups, outputs))
    parts = {
        WEIGHT: Part((words,), packing.awq_weight),
        SCALE: Part((scales,), lambda scale: scale.T if form.block else _flat(scale)),
    }
    if form.zero_points:
        zeros = Tensor(f"{module}.qzeros", (groups, outputs // 8), ("int32",))
        parts[ZERO] = Part((zeros,), lambda words: packing.awq_codes(words).T)
    return parts


def _gptq(form: Quantization, tensor: Tensor, others: Mapping[str, Any]) -> Parts:
    """GPTQ's: integers of 4 or 8 bits in int32 along inputs, and zero points along outputs.

    Files of the first version hold zero points less 1; those of symmetric integers say nothing.
    A bias that the model has not, which some programs write beside every weight, must be zero.
    """
    from jaxinfer.model.quantized import packing

    (outputs, inputs), module = tensor.shape, _module(tensor)
    bits = 4 if form.codes == "int4" else 8
    groups, less = inputs // (form.block or (1, inputs))[1], int(form.stored == "gptq")
    words = Tensor(f"{module}.qweight", (inputs * bits // 32, outputs), ("int32",))
    zeros = Tensor(f"{module}.qzeros", (groups, outputs * bits // 32), ("int32",))
    group = Tensor(f"{module}.g_idx", (inputs,), ("int32",))
    bias = Tensor(f"{module}.bias", (outputs,))
    unread = [] if form.act_order else [group]
    unread += [] if form.zero_points else [zeros]
    present = [each for each in (*unread, bias) if each.name in others]
    trivial = {
        group.name: lambda order: (order == _in_turn(inputs, groups)).all(),
        zeros.name: lambda words: (packing.gptq_zeros(words, bits) == 2 ** (bits - 1) - less).all(),
        bias.name: lambda values: (values == 0).all(),
    }

    def make(words: Any, *rest: Any) -> Any:
        for each, values in zip(present, rest, strict=True):
            if not trivial[each.name](values):
                raise ModelLoadError(f"{each.name} {_NOT_TRIVIAL[each.name.rpartition('.')[2]]}")
        codes = packing.gptq_weight(words)
        return codes if bits == 4 else packing.signed(codes)

    scales = Tensor(f"{module}.scales", (groups, outputs))
    parts = {
        WEIGHT: Part((words, *present), make),
        SCALE: Part((scales,), lambda scale: scale.T if form.block else _flat(scale)),
    }
    if form.zero_points:
        parts[ZERO] = Part((zeros,), lambda words: packing.gptq_zeros(words, bits) + less)
    if form.act_order:
        parts[GROUP] = _group(group, form)
    return parts


_NOT_TRIVIAL = {
    "g_idx": "has groups out of order, though desc_act is false",
    "qzeros": "has zero points other than the middle, though sym is true",
    "bias": "is not zero, though config.json has no such bias",
}


def _in_turn(inputs: int, groups: int) -> Any:
    import numpy as np

    return np.arange(inputs) // (inputs // groups)


def _group(tensor: Tensor, form: Quantization) -> Part:
    groups = tensor.shape[0] // (form.block or tensor.shape)[-1]

    def make(order: Any) -> Any:
        if ((order < 0) | (order >= groups)).any():
            raise ModelLoadError(f"{tensor.name} names groups outside 0 to {groups - 1}")
        return order

    return Part((tensor,), make)


_STORED: Mapping[str, Callable[[Quantization, Tensor, Mapping[str, Any]], Parts]] = {
    "int-quantized": _compressed,
    "float-quantized": _compressed,
    "pack-quantized": _packed,
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
    "gptq_v2": _gptq,
}
