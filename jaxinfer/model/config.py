"""The configuration of a decoder: one frozen dataclass, checked field by field."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.experts import Experts
from jaxinfer.model.families.table import family_of, family_of_file
from jaxinfer.model.field_checks import flag, positive, whole_number
from jaxinfer.model.hf_config import DTYPES, SIZE_LIMITS, read_config_file
from jaxinfer.model.longrope import LongRopeScaling
from jaxinfer.model.quantized.config_json import quantization_config
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.quantized.sizes import check_sizes
from jaxinfer.model.rope_scaling import AnyRopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a model; hashable, so it can be a static jit argument.

    Attributes:
        vocab_size: V, rows of the embedding and width of the logits.
        hidden_size: E.
        intermediate_size: F, width of the gated MLP.
        num_hidden_layers: L.
        num_attention_heads: H, query heads.
        num_key_value_heads: K; divides H.
        head_dim: D, even; independent of E / H.
        rms_norm_eps: added to the mean square in every RMSNorm.
        rope_theta: base of the rotary wavelengths.
        rope_scaling: parameters of YaRN, LongRoPE or Llama 3, or None.
        partial_rotary_factor: share of each head's dimensions, its first, that rotate.
        unrotated_layers: indices of layers whose heads do not rotate, ascending.
        max_position_embeddings: context length in tokens that the config declares.
        tie_word_embeddings: the head is the embedding; the tree then has no ``lm_head``.
        attention_bias: the four attention projections have biases.
        mlp_bias: the three projections of the MLP have biases.
        dtype: the checkpoint's: ``float32``, ``bfloat16`` or ``float16``.
        quantization: which projections are codes with scales, and of what form; None if none is.
        experts: what stands in the place of some or all MLPs; None if all layers are dense.
        eos_token_ids: ids that end a text; may be empty.
        bos_token_id: id that starts a text, if the model has one.
        model_type: names the family, as in Hugging Face's config.json.

    Raises:
        ValueError: a field is of the wrong type, out of range, or contradicts another.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    rope_scaling: AnyRopeScaling | None = None
    partial_rotary_factor: float = 1.0
    unrotated_layers: tuple[int, ...] = ()
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    model_type: str = "qwen3"
    quantization: Quantization | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        for name, largest in SIZE_LIMITS.items():
            whole_number(name, getattr(self, name), 1, largest)
        positive("rms_norm_eps", self.rms_norm_eps)
        if positive("rope_theta", self.rope_theta) <= 1:
            raise ValueError(f"rope_theta must be above 1, got {self.rope_theta}")
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            flag(name, getattr(self, name))
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embedding, got {self.head_dim}")
        share = positive("partial_rotary_factor", self.partial_rotary_factor)
        if share > 1 or self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError(
                f"partial_rotary_factor must leave an even number of {self.head_dim} dimensions, "
                f"at least 2, got {share}"
            )
        if isinstance(self.rope_scaling, LongRopeScaling):
            self.rope_scaling.check_dimensions(self.rotary_dim)
        for layer in self.unrotated_layers:
            whole_number("unrotated_layers", layer, 0, self.num_hidden_layers - 1)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        for token_id in (*self.eos_token_ids, self.bos_token_id):
            if token_id is not None:
                whole_number("eos_token_ids and bos_token_id", token_id, 0, self.vocab_size - 1)
        if self.experts is not None:
            self.experts.check_model(self)
        check_sizes(self)

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotate; the others pass as they are."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def max_context_length(self) -> int:
        """Tokens that positions are good for: as declared, or what a scaling stretches that to."""
        if self.rope_scaling is None:
            return self.max_position_embeddings
        return self.rope_scaling.context_length(self.max_position_embeddings)

    @classmethod
    def from_directory(cls, path: str | Path) -> "ModelConfig":
        """Read ``config.json`` of a model directory.

        Raises:
            ModelLoadError: the file is missing, is not JSON, or describes no model we can run.
        """
        file = Path(path) / "config.json"
        return cls.from_hf(read_config_file(file), str(file))

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any], source: str) -> "ModelConfig":
        """Read Hugging Face's names, in the spelling of transformers 4 or 5.

        What a missing field means is the family's to say, as in transformers; a missing ``dtype``
        is float32, and a ``head_dim`` of null ``hidden_size / num_attention_heads``.

        Args:
            mapping: the JSON object of a config.json.
            source: name of the file, for messages.

        Raises:
            ModelLoadError: ``<source>: <cause>``.
        """
        try:
            name, family = family_of_file(mapping)
            return cls(**family.read_config(mapping), model_type=name)
        except ValueError as error:
            raise ModelLoadError(f"{source}: {error}") from None

    def for_context(self, max_model_len: int | None) -> "ModelConfig":
        """The config of an engine whose texts are at most this long; None is any length.

        LongRoPE has one set of rotations for texts within the original context and another beyond
        it; what is in a KV cache can't change from one to the other.
        """
        if not isinstance(self.rope_scaling, LongRopeScaling) or max_model_len is None:
            return self
        return replace(self, rope_scaling=self.rope_scaling.for_context(max_model_len))

    def to_hf(self) -> dict[str, Any]:
        """A config.json object that both transformers 4 and 5 (and ``from_hf``) read."""
        family = family_of(self.model_type)
        scaling = None if self.rope_scaling is None else self.rope_scaling.to_hf()
        fields = {
            "architectures": [family.hf_class],
            "model_type": self.model_type,
            **{name: getattr(self, name) for name in SIZE_LIMITS},
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.attention_bias,
            "use_sliding_window": False,
            "torch_dtype": self.dtype,
            "eos_token_id": _one_or_list(self.eos_token_ids),
            "bos_token_id": self.bos_token_id,
        }
        if self.mlp_bias:
            fields["mlp_bias"] = True
        if self.quantization is not None:
            fields["quantization_config"] = quantization_config(self.quantization)
        return family.write_config(self, fields)


def _one_or_list(ids: tuple[int, ...]) -> int | list[int] | None:
    if not ids:
        return None
    return ids[0] if len(ids) == 1 else list(ids)
