"""What a Qwen3 model is, read once from Hugging Face's config.json and checked field by field."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.rope_scaling import SUPPORTED_ROPE_TYPES, RopeScaling, positive

SUPPORTED_ARCHITECTURES = ("Qwen3ForCausalLM",)
DTYPES = ("float32", "bfloat16", "float16")

# Generous next to the largest published model (hidden 5,120, 64 layers, vocabulary 151,936), and
# small enough that no product of two of them overflows an int64.
_LARGEST = {
    "vocab_size": 2**24,
    "hidden_size": 2**17,
    "intermediate_size": 2**20,
    "num_hidden_layers": 1024,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 4096,
    "max_position_embeddings": 2**30,
}
_MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a dense Qwen3; hashable, so it can be a static jit argument.

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
        rope_scaling: YaRN's parameters, or None.
        max_position_embeddings: context length in tokens that the config declares.
        tie_word_embeddings: the head is the embedding; the tree then has no ``lm_head``.
        attention_bias: the four attention projections have biases.
        dtype: the checkpoint's: ``float32``, ``bfloat16`` or ``float16``.
        eos_token_ids: ids that end a text; may be empty.
        bos_token_id: id that starts a text, if the model has one.

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
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            _check_whole_number(name, getattr(self, name), 1, largest)
        positive("rms_norm_eps", self.rms_norm_eps)
        positive("rope_theta", self.rope_theta)
        if self.rope_theta <= 1:
            raise ValueError(f"rope_theta must be above 1, got {self.rope_theta}")
        for name in ("tie_word_embeddings", "attention_bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary embedding, got {self.head_dim}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        for name, ids in (("eos_token_id", self.eos_token_ids), ("bos_token_id", self._bos())):
            for token_id in ids:
                _check_whole_number(name, token_id, 0, self.vocab_size - 1)

    def _bos(self) -> tuple[int, ...]:
        return () if self.bos_token_id is None else (self.bos_token_id,)

    @property
    def max_context_length(self) -> int:
        """Tokens that positions are good for: with YaRN, the stretched length when it is longer."""
        if self.rope_scaling is None:
            return self.max_position_embeddings
        stretched = self.rope_scaling.original_max_position_embeddings * self.rope_scaling.factor
        return max(self.max_position_embeddings, int(stretched))

    @classmethod
    def from_directory(cls, path: str | Path) -> "ModelConfig":
        """Read ``config.json`` of a model directory.

        Raises:
            ModelLoadError: the file is missing, is not JSON, or describes no model we can run.
        """
        file = Path(path) / "config.json"
        return cls.from_hf(_read_json_object(file), str(file))

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any], source: str) -> "ModelConfig":
        """Read Hugging Face's names, in the spelling of transformers 4 or 5.

        A missing ``head_dim`` means 128 and a missing ``dtype`` float32, as in transformers; a
        ``head_dim`` of null means ``hidden_size / num_attention_heads``.

        Args:
            mapping: the JSON object of a config.json.
            source: name of the file, for messages.

        Raises:
            ModelLoadError: ``<source>: <cause>``.
        """
        try:
            _check_architecture(mapping)
            _check_unsupported(mapping)
            return cls(**_fields_from_hf(mapping))
        except ValueError as error:
            raise ModelLoadError(f"{source}: {error}") from None

    def to_hf(self) -> dict[str, Any]:
        """A config.json object that both transformers 4 and 5 (and ``from_hf``) read."""
        scaling = None if self.rope_scaling is None else self.rope_scaling.to_hf()
        return {
            "architectures": list(SUPPORTED_ARCHITECTURES),
            "model_type": "qwen3",
            **{name: getattr(self, name) for name in _LARGEST},
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


def _fields_from_hf(mapping: Mapping[str, Any]) -> dict[str, Any]:
    required = [name for name in _LARGEST if name not in ("head_dim", "num_key_value_heads")]
    missing = [name for name in [*required, "num_key_value_heads"] if name not in mapping]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    fields = {name: mapping[name] for name in required}
    for name in required:
        _check_whole_number(name, fields[name], 1, _LARGEST[name])
    heads = fields["num_attention_heads"]
    kv_heads, head_dim = mapping["num_key_value_heads"], mapping.get("head_dim", 128)
    fields["num_key_value_heads"] = heads if kv_heads is None else kv_heads
    fields["head_dim"] = fields["hidden_size"] // heads if head_dim is None else head_dim
    for name in ("tie_word_embeddings", "attention_bias"):
        if mapping.get(name) is not None:
            fields[name] = mapping[name]
    if mapping.get("rms_norm_eps") is not None:
        fields["rms_norm_eps"] = positive("rms_norm_eps", mapping["rms_norm_eps"])
    fields |= _rope_from_hf(mapping, fields["max_position_embeddings"])
    dtype = mapping.get("dtype") or mapping.get("torch_dtype") or "float32"
    fields["dtype"] = dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype
    fields["eos_token_ids"] = _ids(mapping.get("eos_token_id"))
    fields["bos_token_id"] = mapping.get("bos_token_id")
    return fields


def _rope_from_hf(mapping: Mapping[str, Any], max_position_embeddings: int) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` from either transformers' spelling."""
    rope = mapping.get("rope_parameters") or mapping.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"rope_scaling must be an object, got {rope!r}")
    theta = rope.get("rope_theta", mapping.get("rope_theta"))
    if theta is None:
        raise ValueError("missing rope_theta")
    theta = positive("rope_theta", theta)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in SUPPORTED_ROPE_TYPES:
        raise ValueError(
            f"rope_scaling type {kind!r} is not supported (supported: "
            f"{', '.join(SUPPORTED_ROPE_TYPES)})"
        )
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    # transformers gives a top-level original length priority over the one inside the object.
    original = mapping.get("original_max_position_embeddings")
    if original is not None:
        rope = {**rope, "original_max_position_embeddings": original}
    scaling = RopeScaling.from_hf(rope, max_position_embeddings)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _check_architecture(mapping: Mapping[str, Any]) -> None:
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    model_type = mapping.get("model_type")
    if model_type != "qwen3":
        named = "has no model_type" if model_type is None else f"model_type is {model_type!r}"
        raise ValueError(f"{named}, not 'qwen3' (supported architectures: {supported})")
    architectures = mapping.get("architectures")
    if architectures is None:
        return
    if not isinstance(architectures, list) or not set(SUPPORTED_ARCHITECTURES) & {
        name for name in architectures if isinstance(name, str)
    }:
        raise ValueError(f"architectures is {architectures!r} (supported: {supported})")


def _check_unsupported(mapping: Mapping[str, Any]) -> None:
    """Refuse what would change the model's output if it were ignored."""
    if mapping.get("quantization_config"):
        raise ValueError("quantization_config: quantized checkpoints are not supported")
    if mapping.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {mapping['hidden_act']!r}")
    layer_types = mapping.get("layer_types") or []
    if mapping.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ValueError("sliding-window attention is not supported (use_sliding_window)")
    rope = mapping.get("rope_parameters")
    nested = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    if (nested or mapping.get("partial_rotary_factor") or 1) != 1:
        raise ValueError("partial_rotary_factor must be 1")


def _read_json_object(file: Path) -> Mapping[str, Any]:
    """Parse a small JSON file into an object, refusing anything else in one line."""
    try:
        if file.stat().st_size > _MAX_CONFIG_BYTES:
            raise ModelLoadError(f"{file}: larger than 1 MiB, not a model configuration")
        mapping = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{file}: no such file; not a model directory") from None
    except OSError as error:
        raise ModelLoadError(f"{file}: {error.strerror}") from None
    except RecursionError:
        raise ModelLoadError(f"{file}: nested too deeply") from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ModelLoadError(f"{file}: not JSON ({reason})") from None
    if not isinstance(mapping, dict):
        raise ModelLoadError(f"{file}: holds a JSON {type(mapping).__name__}, not an object")
    return mapping


def _ids(value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _one_or_list(ids: tuple[int, ...]) -> int | list[int] | None:
    if not ids:
        return None
    return ids[0] if len(ids) == 1 else list(ids)


def _check_whole_number(name: str, value: object, smallest: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ValueError(
            f"{name} must be a whole number from {smallest} to {largest}, got {_short(value)}"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
