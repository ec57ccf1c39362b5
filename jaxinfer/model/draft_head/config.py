"""The shape of an EAGLE-3 draft head, from either of the two published forms of its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.field_checks import flag, whole_number
from jaxinfer.model.hf_config import read_config_file

_CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_SPECULATORS = "speculators_model_type"
_NOT_COMPUTED = ("attention_bias", "mlp_bias")
_FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")
_NUM_STATES = 3


@dataclass(frozen=True)
class DraftHeadConfig:
    """The shape and the constants of a draft head; hashable, static in programs.

    Attributes:
        layer: of its one layer, as of a decoder of a single one; V and E are the model's.
        draft_vocab_size: Vd, tokens that it can guess.
        states: the model's layers whose incoming residual stream it reads, three of them; 0 reads
            the embedding.
        norm_before_residual: the layer adds to the normed state rather than to the state.
        norm_output: what it feeds back to itself is the output behind its final norm.
        norm_before_fc: the states are normed before they are projected: as one vector of 3E.
        fc_norm: they are normed there, each by itself.
    """

    layer: ModelConfig
    draft_vocab_size: int
    states: tuple[int, ...]
    norm_before_residual: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False

    def to_hf(self) -> dict[str, Any]:
        """A config.json object, in the form of the class `LlamaForCausalLMEagle3`."""
        return {
            **self.layer.to_hf(),
            "architectures": [_CLASSES[0]],
            "draft_vocab_size": self.draft_vocab_size,
            **{name: getattr(self, name) for name in _FLAGS},
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": list(self.states),
            },
        }


def read_draft_head_config(directory: Path, model: ModelConfig) -> DraftHeadConfig:
    """The configuration of the head in a directory.

    Args:
        directory: holds its config.json.
        model: the one that it is to draft for.

    Raises:
        ModelLoadError: there is no config.json, it describes no head that can be run, or one for
            another model; one line that names the file.
    """
    file = directory / "config.json"
    mapping = read_config_file(file)
    try:
        return _from_mapping(mapping, model)
    except ValueError as error:
        raise ModelLoadError(f"{file}: {error}") from None


def _from_mapping(mapping: Mapping[str, Any], model: ModelConfig) -> DraftHeadConfig:
    shape = _shape_of(mapping)
    for name in _NOT_COMPUTED:
        if mapping.get(name) or shape.get(name):
            raise ValueError(f"{name} is not supported in a draft head")
    if mapping.get("quantization_config") or shape.get("quantization_config"):
        raise ValueError("a quantized draft head is not supported (quantization_config)")
    fields = family_of("llama").read_config({**shape, "eos_token_id": None, "bos_token_id": None})
    layer = ModelConfig(**fields, model_type="llama")
    if layer.num_hidden_layers != 1:
        raise ValueError(
            f"num_hidden_layers must be 1 in a draft head, got {layer.num_hidden_layers}"
        )
    for name in ("hidden_size", "vocab_size"):
        _check_fits(name, getattr(layer, name), getattr(model, name))
    if mapping.get("target_hidden_size") is not None:
        _check_fits("target_hidden_size", mapping["target_hidden_size"], model.hidden_size)
    size = mapping.get("draft_vocab_size")
    size = layer.vocab_size if size is None else size
    states = _states(mapping, model.num_hidden_layers)
    beside = mapping.get("eagle_config") or {}  # where some heads have them
    flags = {name: flag(name, mapping.get(name, beside.get(name)) or False) for name in _FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise ValueError("norm_before_fc and fc_norm exclude each other")
    size = whole_number("draft_vocab_size", size, 1, layer.vocab_size)
    return DraftHeadConfig(layer, size, states, **flags)


def _shape_of(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the object that describes the layer, as of a Llama model."""
    kind = mapping.get(_SPECULATORS)
    if kind is None:
        classes = mapping.get("architectures")
        if not isinstance(classes, list) or not any(name in _CLASSES for name in classes):
            raise ValueError(
                f"not an EAGLE-3 head: architectures must name {_CLASSES[0]}, got {show(classes)}"
            )
        return mapping
    if kind != "eagle3":
        raise ValueError(f"not an EAGLE-3 head: {_SPECULATORS} is {show(kind)}")
    shape = mapping.get("transformer_layer_config")
    if not isinstance(shape, Mapping):
        raise ValueError(f"transformer_layer_config must be an object, got {show(shape)}")
    if shape.get("model_type", "llama") != "llama":
        raise ValueError(
            f"transformer_layer_config: model_type must be 'llama', got {show(shape['model_type'])}"
        )
    return shape


def _check_fits(name: str, value: object, wanted: int) -> None:
    if value != wanted:
        raise ValueError(
            f"a head for another model: {name} is {show(value)}, and the model's is {wanted}"
        )


def _states(mapping: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    options, name = mapping.get("eagle_config") or {}, "eagle_aux_hidden_state_layer_ids"
    if not isinstance(options, Mapping):
        raise ValueError(f"eagle_config must be an object, got {show(options)}")
    if options.get("use_aux_hidden_state") is False:
        raise ValueError("use_aux_hidden_state=false is not supported in a draft head")
    given = options.get(name, mapping.get(name))
    if given is None:
        given = [2, num_layers // 2, num_layers - 3]
        if not all(0 <= layer < num_layers for layer in given):
            raise ValueError(
                f"{name} is missing, and its default, [2, L/2, L-3], does not fit the model's "
                f"{num_layers} layers"
            )
    if not isinstance(given, list) or len(given) != _NUM_STATES:
        raise ValueError(f"{name} must be {_NUM_STATES} layers, got {show(given)}")
    return tuple(whole_number(name, layer, 0, num_layers - 1) for layer in given)
