"""The shape of a decoder, from which parameters and operations are counted."""

import dataclasses

from jaxinfer.config import KVCacheDType
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.family import FAMILIES, family_of
from jaxinfer.model.field_checks import indivisible_sizes

BYTES_OF = {"bfloat16": 2, "float16": 2, "float32": 4}
_SCALE_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape(ModelConfig):
    """A decoder that can be planned: one that the engine runs, or one of experts.

    Attributes:
        num_experts: of a layer, each of `intermediate_size`; 0 is one dense MLP.
        experts_per_token: chosen by the router for each token.
    """

    num_experts: int = 0
    experts_per_token: int = 0

    @property
    def is_served(self) -> bool:
        """True if this engine runs models of this kind; others can be planned for comparison."""
        return self.model_type in FAMILIES

    @property
    def is_measured(self) -> bool:
        """True if expected times are fitted to recorded runs of models of this kind."""
        return self.model_type == "qwen3"

    @property
    def qk_norm(self) -> bool:
        """True if queries and keys have a norm of D weights each."""
        if not self.is_served:
            return True
        return family_of(self.model_type).layer_kinds(self)[0].head_norms

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
        """Weights of one MLP, or of one expert."""
        return 3 * self.hidden_size * self.intermediate_size

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
            kv_cache_dtype: contents of pages: activations, or integers with a scale for each head.
        """
        heads = self.kv_heads_of_device(num_devices)
        head_bytes = self.head_dim * bytes_per_value
        if kv_cache_dtype == "int8":
            head_bytes = self.head_dim + _SCALE_BYTES
        return 2 * self.num_hidden_layers * heads * head_bytes

    def indivisible(self, num_devices: int) -> list[str]:
        """Sizes that do not split evenly over this number of devices, each with its value."""
        return indivisible_sizes(
            num_devices,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
        )


def shape_of(config: ModelConfig) -> ModelShape:
    """The shape of a model that the engine runs."""
    return ModelShape(**vars(config))
