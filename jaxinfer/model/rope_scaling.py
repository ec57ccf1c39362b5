"""What stretches a model's context by changing its rotations: YaRN, LongRoPE, and Llama 3's way.

Each kind is a value that is read from and written to `config.json`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxinfer.model.field_checks import flag, positive, whole_number
from jaxinfer.model.longrope import LongRopeScaling

if TYPE_CHECKING:
    import numpy as np

SUPPORTED_ROPE_TYPES = ("default", "yarn", "llama3", "longrope")
_ORIGINAL_LENGTH = "rope_scaling original_max_position_embeddings"
_OPTIONAL_NUMBERS = ("attention_factor", "mscale", "mscale_all_dim")
_LLAMA3_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor")
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
        query_beta: queries beyond the original context are multiplied by
            ``1 + beta ln(1 + floor(position / original))``, as Ministral 3 does; None leaves them.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    query_beta: float | None = None

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
        if self.query_beta is not None:
            positive("rope_scaling llama_4_scaling_beta", self.query_beta)

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

    def context_length(self, max_position_embeddings: int) -> int:
        """Tokens that positions are good for: the stretched length when it is longer."""
        stretched = self.original_max_position_embeddings * self.factor
        return max(max_position_embeddings, int(stretched))

    def scaled(self, wavelengths: "np.ndarray", theta: float) -> "tuple[np.ndarray, float]":
        """The frequencies, float32 ``[D / 2]``, and the factor on cos and sin.

        Args:
            wavelengths: of the plain series, float32 ``[D / 2]``, in positions a radian.
            theta: its base.
        """
        import numpy as np  # `jaxinfer plan` reads scalings, and loads nothing heavy

        extrapolated = np.float32(1) / wavelengths
        interpolated = np.float32(1) / (np.float32(self.factor) * wavelengths)
        low, high = self._correction_range(2 * len(wavelengths), theta)
        ramp = np.arange(len(wavelengths), dtype=np.float32) - np.float32(low)
        ramp = ramp / np.float32(high - low)
        keep = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
        frequencies = interpolated * (np.float32(1) - keep) + extrapolated * keep
        return frequencies, self.cos_sin_scale()

    def _correction_range(self, head_dim: int, theta: float) -> tuple[float, float]:
        """First and last dimension of the ramp between kept and interpolated frequencies."""

        def dimension_of(rotations: float) -> float:
            turns = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return head_dim * math.log(turns) / (2 * math.log(theta))

        low, high = dimension_of(self.beta_fast), dimension_of(self.beta_slow)
        if self.truncate:
            low, high = float(math.floor(low)), float(math.ceil(high))
        low, high = max(low, 0.0), min(high, float(head_dim - 1))
        return low, high if high != low else high + 0.001  # an empty ramp would divide by zero

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
            "llama_4_scaling_beta": self.query_beta,
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


@dataclass(frozen=True)
class Llama3RopeScaling:
    """Llama 3.1's scaling (https://arxiv.org/abs/2407.21783): slow rotations slowed by ``factor``.

    Attributes:
        factor: what frequencies of long wavelengths are divided by; at least 1.
        low_freq_factor: wavelengths above the original context divided by it are slowed.
        high_freq_factor: wavelengths below the original context divided by it are left alone;
            between the two, frequencies are interpolated.
        original_max_position_embeddings: context length in tokens that the weights were trained at.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name in _LLAMA3_NUMBERS:
            positive(f"rope_scaling {name}", getattr(self, name))
        if self.factor < 1:
            raise ValueError(f"rope_scaling factor must be at least 1, got {self.factor}")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"rope_scaling high_freq_factor ({self.high_freq_factor}) must exceed "
                f"low_freq_factor ({self.low_freq_factor})"
            )
        whole_number(_ORIGINAL_LENGTH, self.original_max_position_embeddings, 1, 2**31 - 1)

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any]) -> "Llama3RopeScaling":
        """Read ``rope_scaling`` / ``rope_parameters`` of type llama3, less type and ``rope_theta``.

        Raises:
            ValueError: a key is unknown or missing, or a value impossible.
        """
        names = (*_LLAMA3_NUMBERS, "original_max_position_embeddings")
        unknown, missing = sorted(set(mapping) - {*names}), [n for n in names if n not in mapping]
        if unknown:
            raise ValueError(f"rope_scaling has unknown keys for llama3: {', '.join(unknown)}")
        if missing:
            raise ValueError(f"rope_scaling of type llama3 needs {', '.join(missing)}")
        numbers = {name: positive(f"rope_scaling {name}", mapping[name]) for name in names[:-1]}
        return cls(**numbers, original_max_position_embeddings=mapping[names[-1]])

    def to_hf(self) -> dict[str, Any]:
        """The JSON object that ``from_hf`` reads back."""
        return {"rope_type": "llama3", **asdict(self)}

    def context_length(self, max_position_embeddings: int) -> int:
        """Tokens that positions are good for: what config.json declares is stretched already."""
        return max_position_embeddings

    def scaled(self, wavelengths: "np.ndarray", theta: float) -> "tuple[np.ndarray, float]":
        """As `RopeScaling.scaled`; cos and sin stay as they are."""
        import numpy as np

        frequencies = np.float32(1) / wavelengths
        turns = np.float32(self.original_max_position_embeddings) * frequencies
        turns = turns / np.float32(2 * math.pi)  # in the original context
        low, high = np.float32(self.low_freq_factor), np.float32(self.high_freq_factor)
        keep = np.clip((turns - low) / (high - low), np.float32(0), np.float32(1))
        slowed = frequencies / np.float32(self.factor)
        return slowed * (np.float32(1) - keep) + frequencies * keep, 1.0


AnyRopeScaling = RopeScaling | Llama3RopeScaling | LongRopeScaling


def scaling_from_hf(
    kind: str, mapping: Mapping[str, Any], max_position_embeddings: int
) -> AnyRopeScaling:
    """A scaling of one of `SUPPORTED_ROPE_TYPES` but "default".

    Args:
        mapping: the JSON object without that and ``rope_theta``.

    Raises:
        ValueError: a key is unknown or missing, or a value impossible.
    """
    if kind == "llama3":
        return Llama3RopeScaling.from_hf(mapping)
    if kind == "longrope":
        return LongRopeScaling.from_hf(mapping, max_position_embeddings)
    return RopeScaling.from_hf(mapping, max_position_embeddings)
