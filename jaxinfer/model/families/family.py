"""What a model family is. Nothing here imports JAX."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxinfer.model.checkpoint.parameter_names import tensor_name
from jaxinfer.model.checkpoint.source_plan import (
    Shape,
    SourcePlan,
    cut_from,
    one_tensor_each,
    stacked_from,
)
from jaxinfer.model.layer_kind import LayerKind


def _with_fewer_layers(config: Any, layers: Sequence[int]) -> Any:
    return replace(config, num_hidden_layers=len(layers))


def _unchanged(config: Any, fields: dict[str, Any]) -> dict[str, Any]:
    return fields


@dataclass(frozen=True)
class Family:
    """A model family: what its files say, what its layers are, and its parts on a device.

    Attributes:
        hf_class: transformers' class, which `architectures` of config.json names.
        read_config: ``(object of config.json) -> arguments of ModelConfig``, without `model_type`.
            It raises ValueError, which names the field, for what it can't read or run.
        layer_kinds: ``(config) -> kind of each layer``, in order.
        architecture: what computes it; called when it is first needed, and may import JAX. None is
            a `dense_decoder` of these kinds.
        with_layers: ``(config, indices) -> config`` of a model with these layers alone, by which
            the memory of a step is found out; by default as many layers as there are indices.
        write_config: ``(config, fields) -> object of config.json``, which `read_config` reads
            back, from the fields that all families have.
        tensor_name: from a path in the parameter tree to the tensor's name in the family's files.
        fused: by the last part of a tensor's path, such as ``"qkv_proj"``: names of the
            projections that are its rows, in order.
        stacked: name of the modules whose leaves have a leading axis for what files number, as
            ``experts.gate_proj`` ``[X, F, E]`` is ``experts.0.gate_proj``, ``experts.1.gate_proj``
            and so on; empty where there are none.
        ignored: prefixes of tensors' names that belong to parts that are not served.
        make_plan: ``(config, shapes of the leaves by path, names of the files' tensors) -> plan``,
            where files hold neither a tensor for each leaf nor fused ones; None where they do.
    """

    hf_class: str
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    layer_kinds: Callable[[Any], tuple[LayerKind, ...]]
    architecture: Callable[[], Any] | None = None
    with_layers: Callable[[Any, Sequence[int]], Any] = _with_fewer_layers
    write_config: Callable[[Any, dict[str, Any]], dict[str, Any]] = _unchanged
    tensor_name: Callable[[str], str] = tensor_name
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stacked: str = ""
    ignored: tuple[str, ...] = ()
    make_plan: Callable[[Any, Mapping[str, Shape], Collection[str]], SourcePlan] | None = None

    @property
    def classifier_class(self) -> str | None:
        """transformers' class of this decoder with a classifying head; None if there is none."""
        name = self.hf_class.removesuffix("ForCausalLM")
        return None if name == self.hf_class else f"{name}ForSequenceClassification"

    def source_plan(
        self, config: Any, shapes: Mapping[str, Shape], names: Collection[str]
    ) -> SourcePlan:
        """What each leaf is made of; arguments as of `make_plan`."""
        if self.make_plan is not None:
            return self.make_plan(config, shapes, names)
        plan = one_tensor_each(shapes, names, self.tensor_name)
        plan = stacked_from(plan, self.stacked) if self.stacked else plan
        return cut_from(plan, shapes, self.fused) if self.fused else plan
