"""LongRoPE: wavelengths stretched by a factor each, of one set for short texts or one for long."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxinfer.checks import show
from jaxinfer.model.field_checks import positive, whole_number

if TYPE_CHECKING:
    import numpy as np

_ORIGINAL = "rope_scaling original_max_position_embeddings"
_LISTS = ("short_factor", "long_factor")


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (https://arxiv.org/abs/2402.13753): a factor on each wavelength, found by search.

    Attributes:
        short_factor: one for each rotating pair, of models that serve the original context alone.
        long_factor: the same, of models that serve longer texts.
        original_max_position_embeddings: context length in tokens that the weights were trained at.
        attention_factor: multiplies cos and sin of both.
        is_long: the long factors are in use.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float
    is_long: bool

    def __post_init__(self) -> None:
        for name in _LISTS:
            for each in getattr(self, name):
                positive(f"rope_scaling {name}", each)
        positive("rope_scaling attention_factor", self.attention_factor)
        whole_number(_ORIGINAL, self.original_max_position_embeddings, 1, 2**31 - 1)

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any], max_position_embeddings: int) -> "LongRopeScaling":
        """Read Hugging Face's ``rope_scaling`` / ``rope_parameters`` of type ``longrope``.

        As in transformers, the attention factor is ``sqrt(1 + ln(s) / ln(original))`` where the
        object has none, and ``s`` its ``factor`` or the context's growth.

        Args:
            mapping: the JSON object without its type and ``rope_theta``.
            max_position_embeddings: the model's; above the original length, factors are the long
                ones.

        Raises:
            ValueError: a key is unknown or missing, or a value impossible.
        """
        needed = (*_LISTS, "original_max_position_embeddings")
        unknown = sorted(set(mapping) - {*needed, "factor", "attention_factor"})
        missing = [name for name in needed if mapping.get(name) is None]
        if unknown:
            raise ValueError(f"rope_scaling has unknown keys for longrope: {', '.join(unknown)}")
        if missing:
            raise ValueError(f"rope_scaling of type longrope needs {', '.join(missing)}")
        for name in _LISTS:
            if not isinstance(mapping[name], list):
                raise ValueError(f"rope_scaling {name} must be a list, got {show(mapping[name])}")
        original = whole_number(_ORIGINAL, mapping[needed[2]], 1, 2**31 - 1)
        given = mapping.get("factor")
        factor = max_position_embeddings / original if given is None else given
        attention = mapping.get("attention_factor")
        if attention is None:
            growth = math.log(max(1.0, positive("rope_scaling factor", factor)))
            attention = math.sqrt(1 + growth / math.log(original)) if growth else 1.0
        return cls(
            short_factor=tuple(mapping["short_factor"]),
            long_factor=tuple(mapping["long_factor"]),
            original_max_position_embeddings=original,
            attention_factor=attention,
            is_long=max_position_embeddings > original,
        )

    def to_hf(self) -> dict[str, Any]:
        """The JSON object that ``from_hf`` reads back."""
        fields = asdict(self) | {"rope_type": "longrope"}
        fields |= {name: list(fields[name]) for name in _LISTS}
        return {name: value for name, value in fields.items() if name != "is_long"}

    def context_length(self, max_position_embeddings: int) -> int:
        """Tokens that positions are good for: what config.json declares."""
        return max_position_embeddings

    def for_context(self, max_model_len: int) -> "LongRopeScaling":
        """The factors of an engine whose texts have at most this number of tokens."""
        return replace(self, is_long=max_model_len > self.original_max_position_embeddings)

    def check_dimensions(self, rotary_dim: int) -> None:
        """Raise ValueError unless there is a factor for each rotating pair."""
        for name in _LISTS:
            length = len(getattr(self, name))
            if length != rotary_dim // 2:
                raise ValueError(
                    f"rope_scaling {name} must have {rotary_dim // 2} numbers, got {length}"
                )

    def scaled(self, wavelengths: "np.ndarray", theta: float) -> "tuple[np.ndarray, float]":
        """As `RopeScaling.scaled`."""
        import numpy as np

        factors = np.array(self.long_factor if self.is_long else self.short_factor, np.float32)
        return np.float32(1) / (factors * wavelengths), self.attention_factor
