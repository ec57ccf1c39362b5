"""The shape of a decoder, from which parameters and operations are counted."""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jaxinfer.config import EngineConfig, KVCacheDType
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.degrees import check_expert_groups, check_redundant_experts, indivisible
from jaxinfer.model.experts import Experts
from jaxinfer.model.families.table import family_of
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, MLP_PROJECTIONS, LayerKind
from jaxinfer.model.projections import (
    HEAD,
    PROJECTIONS,
    is_of_experts,
    projection_paths,
    projection_shapes,
    splits,
)
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.quantized.sizes import expert_bytes, node_bytes

PLAIN = "plain weights"
BYTES_OF = {"bfloat16": 2, "float16": 2, "float32": 4}
_SCALE_BYTES = 4
ATTENTION = tuple(f"self_attn.{name}" for name in ATTENTION_PROJECTIONS)
MLP = tuple(f"mlp.{name}" for name in MLP_PROJECTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape(ModelConfig):
    """A decoder that can be planned.

    Attributes:
        num_classes: of a classifying head, which the host holds; 0 for a language model.
    """

    num_classes: int = 0

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "ModelShape":
        """The shape that `dataclasses.asdict` made values of, which JSON may have carried."""
        given = values.get("quantization")
        quantization = None if given is None else Quantization.from_values(given)
        experts = values.get("experts")
        if experts is not None:
            dense = tuple(experts["dense_layers"])
            experts = Experts(**{**experts, "dense_layers": dense})
        made = {
            "quantization": quantization,
            "experts": experts,
            "eos_token_ids": tuple(values.get("eos_token_ids", ())),
            "rope_scaling": None,  # a scaled rotation counts like any other
            "unrotated_layers": (),
        }
        return cls(**{**values, **made})

    @property
    def is_measured(self) -> bool:
        """True if times were recorded of models of this family."""
        return self.model_type in ("qwen3", "qwen3_moe")

    @property
    def weights_kind(self) -> str:
        """What times are fitted for: "plain weights", "fp8 weights", "experts", "fp8 experts"..."""
        of_experts = "experts" if self.experts else "weights"
        if self.quantization is not None:
            return f"{self.quantization.codes} {of_experts}"
        return of_experts if self.experts else PLAIN

    @property
    def layer_kind(self) -> LayerKind:
        """The norms and biases of a layer; layers differ in what counts nothing, if at all."""
        return family_of(self.model_type).layer_kinds(self)[0]

    @property
    def qk_norm_size(self) -> int:
        """Weights of a layer's norms of queries and keys."""
        kind = self.layer_kind
        if kind.wide_norms:
            return self.q_size + self.kv_size
        return 2 * self.head_dim if kind.head_norms else 0

    def bias_size(self, *names: str) -> int:
        """Elements of those biases that a layer has, of the projections with these names."""
        shapes, biases = projection_shapes(self), self.layer_kind.biases
        return sum(shapes[name][0] for name in names if name in biases)

    @property
    def q_size(self) -> int:
        """H * D."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """K * D."""
        return self.num_key_value_heads * self.head_dim

    @property
    def mlp_weights(self) -> int:
        """Weights of one dense MLP."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def num_experts(self) -> int:
        """X, of a layer that has experts; 0 for a dense model."""
        return 0 if self.experts is None else self.experts.num_experts

    @property
    def experts_per_token(self) -> int:
        """Chosen by the router for each token."""
        return 0 if self.experts is None else self.experts.experts_per_token

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        width = 0 if self.experts is None else self.experts.intermediate_size
        return 3 * self.hidden_size * width

    @property
    def num_dense_layers(self) -> int:
        """Layers with one MLP; the others have experts."""
        return self.num_hidden_layers if self.experts is None else len(self.experts.dense_layers)

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts."""
        return self.num_hidden_layers - self.num_dense_layers

    def expert_bytes(self, bytes_per_value: int) -> int:
        """Bytes of one expert in every layer that has some.

        Args:
            bytes_per_value: of a plain weight.
        """
        return 0 if self.experts is None else expert_bytes(self, bytes_per_value)

    def bytes_saved(
        self, bytes_per_value: int, num_devices: int = 1, parts: Collection[str] = PROJECTIONS
    ) -> int:
        """Bytes of each device that projections don't take because they are codes with scales.

        Experts' are for `expert_bytes` to say.

        Args:
            bytes_per_value: of a plain weight.
            num_devices: N, that the model is split over.
            parts: names of the projections to count, of all layers.
        """
        form = self.quantization
        return sum(
            plain * bytes_per_value - node_bytes(form, path, self, num_devices)
            for path, plain in self._quantized(num_devices)
            if form is not None and _part(path) in parts
        )

    def weights_times_codes(self, num_devices: int = 1) -> int:
        """Weights on each device that are multiplied, as codes, by inputs that are codes, too."""
        form = self.quantization
        if form is None or form.inputs is None:
            return 0
        dense = sum(plain for _, plain in self._quantized(num_devices))
        if not any(is_of_experts(path) and form.takes(path) for path in projection_paths(self)):
            return dense
        experts = self.experts_per_token * self.num_expert_layers * self.expert_weights
        return dense + experts // num_devices

    def _quantized(self, num_devices: int) -> Iterator[tuple[str, int]]:
        """Paths of projections that are codes with scales, and each device's number of weights.

        Experts' are left out.
        """
        form, shapes = self.quantization, projection_shapes(self)
        for path in projection_paths(self):
            if form is not None and form.takes(path) and not is_of_experts(path):
                name = path.rpartition(".")[2]
                parts = math.prod(splits(name, self, num_devices))
                yield path, math.prod(shapes[name]) // parts

    def kv_heads_of_device(self, num_devices: int) -> int:
        """Key/value heads that each device holds: at least one, which several may share."""
        return max(self.num_key_value_heads // num_devices, 1)

    def kv_bytes_per_token(
        self,
        bytes_per_value: int = 2,
        num_devices: int = 1,
        kv_cache_dtype: KVCacheDType = "auto",
    ) -> int:
        """Bytes of one token's keys and values in all layers, on each device.

        Args:
            bytes_per_value: of activations.
            num_devices: N, that heads are split over.
            kv_cache_dtype: contents of pages: values of activations, values of eight bits, or
                integers with a scale for each head.
        """
        heads = self.kv_heads_of_device(num_devices)
        head_bytes = self.head_dim * bytes_per_value
        if kv_cache_dtype != "auto":
            scale_bytes = _SCALE_BYTES if kv_cache_dtype == "int8" else 0
            head_bytes = self.head_dim + scale_bytes
        return 2 * self.num_hidden_layers * heads * head_bytes

    def indivisible(self, num_devices: int, num_groups: int = 1) -> list[str]:
        """Sizes that do not split evenly over this number of devices, each with its value.

        With `num_groups`, so many groups of the devices have whole experts.
        """
        return indivisible(self, num_devices, num_groups)


def _part(path: str) -> str:
    """The name in `PROJECTIONS` of the projection at a path."""
    return path.rpartition(".")[2] if path == HEAD else ".".join(path.split(".")[3:])


def expert_groups(shape: ModelShape, config: EngineConfig) -> int:
    """G, the groups of devices that have whole experts; 1 where devices share each of them.

    Raises:
        ValueError: `config` asks for it, and it can't be.
    """
    if not config.enable_expert_parallel:
        return 1
    size, wanted = config.tensor_parallel_size, config.expert_parallel_size
    groups = check_expert_groups(shape, size, wanted)
    if config.enable_eplb:
        check_redundant_experts(groups, config.redundant_experts)
    return groups


def check_contexts(shape: ModelShape, config: EngineConfig) -> None:
    """Raise ValueError if tokens are to be dealt to several devices, and the model has experts."""
    if config.context_parallel_size > 1 and shape.num_experts:
        raise ValueError(
            "context_parallel_size does not go with a model with experts; leave it out"
        )


def shape_of(config: ModelConfig) -> ModelShape:
    """The shape of a model that the engine runs."""
    return ModelShape(**vars(config))
