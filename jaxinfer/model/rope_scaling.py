"""YaRN's parameters, which stretch a model's context: read from and written to `config.json`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxinfer.model.field_checks import flag, positive, whole_number

SUPPORTED_ROPE_TYPES = ("default", "yarn")
_ORIGINAL_LENGTH = "rope_scaling original_max_position_embeddings"
_OPTIONAL_NUMBERS = ("attention_factor", "mscale", "mscale_all_dim")
_YARN_KEYS = {
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
}


@dataclass(frozen=True)
class RopeScaling:
    """YaRN (https://arxiv.org/abs/2309.00071): stretch the context by ``factor``.

    Attributes:
        factor: context length after divided by context length before; at least 1.
        original_max_position_embeddings: context length in tokens that the weights were trained at.
        attention_factor: multiplies cos and sin; None computes the paper's ``0.1 ln(factor) + 1``.
        beta_fast: rotations over the original context above which a dimension is left alone.
        beta_slow: rotations below which a dimension is fully interpolated.
        mscale: numerator's weight in the computed attention factor (with ``mscale_all_dim``).
        mscale_all_dim: denominator's weight in the computed attention factor.
        truncate: round the boundaries between the two regimes to whole dimensions.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow", *_OPTIONAL_NUMBERS):
            if name not in _OPTIONAL_NUMBERS or getattr(self, name) is not None:
                positive(f"rope_scaling {name}", getattr(self, name))
        if self.factor < 1:
            raise ValueError(f"rope_scaling factor must be at least 1, got {self.factor}")
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"rope_scaling beta_fast ({self.beta_fast}) must exceed beta_slow "
                f"({self.beta_slow})"
            )
        whole_number(_ORIGINAL_LENGTH, self.original_max_position_embeddings, 1, 2**31 - 1)
        flag("rope_scaling truncate", self.truncate)

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any], max_position_embeddings: int) -> "RopeScaling":
        """Read Hugging Face's ``rope_scaling`` / ``rope_parameters`` of type ``yarn``.

        ``attn_factor``, of YaRN's first implementation and of vLLM, multiplies the attention factor
        that is computed, where transformers' ``attention_factor`` takes its place. transformers
        itself ignores it, with a warning.

        Args:
            mapping: the JSON object without its type and ``rope_theta``.
            max_position_embeddings: the model's, used where the object names no original length.

        Raises:
            ValueError: a key is unknown or a value impossible.
        """
        unknown = sorted(set(mapping) - _YARN_KEYS)
        if unknown:
            raise ValueError(f"rope_scaling has unknown keys for yarn: {', '.join(unknown)}")
        if mapping.get("factor") is None:
            raise ValueError("rope_scaling of type yarn needs a factor")
        original = mapping.get("original_max_position_embeddings")
        truncate = mapping.get("truncate")
        numbers = {
            name: positive(f"rope_scaling {name}", mapping[name])
            for name in ("factor", "beta_fast", "beta_slow", *_OPTIONAL_NUMBERS)
            if mapping.get(name) is not None
        }
        scaling = cls(
            **numbers,
            original_max_position_embeddings=(
                max_position_embeddings
                if original is None
                else whole_number(_ORIGINAL_LENGTH, original, 1, 2**31 - 1)
            ),
            truncate=True if truncate is None else flag("rope_scaling truncate", truncate),
        )
        if mapping.get("attn_factor") is None:
            return scaling
        if scaling.attention_factor is not None:
            raise ValueError("rope_scaling has attention_factor and attn_factor; leave one out")
        share = positive("rope_scaling attn_factor", mapping["attn_factor"])
        return replace(scaling, attention_factor=share * scaling.cos_sin_scale())

    def to_hf(self) -> dict[str, Any]:
        """The JSON object that ``from_hf`` reads back."""
        fields = {
            "rope_type": "yarn",
            "factor": self.factor,
            "original_max_position_embeddings": self.original_max_position_embeddings,
            "attention_factor": self.attention_factor,
            "beta_fast": self.beta_fast,
            "beta_slow": self.beta_slow,
            "mscale": self.mscale,
            "mscale_all_dim": self.mscale_all_dim,
            "truncate": self.truncate,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def cos_sin_scale(self) -> float:
        """What cos and sin are multiplied by (YaRN section 3.4, with DeepSeek's mscale pair)."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    def _mscale(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0
