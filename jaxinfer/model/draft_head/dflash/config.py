"""The shape of a DFlash draft head, from either of the two published forms of its config.json."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.checks import show
from jaxinfer.model.checkpoint.parameter_names import tensor_name
from jaxinfer.model.checkpoint.source_plan import Shape
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.head_config import (
    SPECULATORS,
    check_fits,
    read_draft_vocab_size,
    read_layer,
    refuse,
    shape_of,
)
from jaxinfer.model.field_checks import whole_number

_CLASS = "DFlashDraftModel"
_NOT_COMPUTED = (
    *("attention_bias", "mlp_bias", "is_causal", "causal", "use_swa", "use_sliding_window"),
    *("attention_sink_bias", "add_swa_attention_sink_bias", "sample_from_anchor"),
)
_OTHERWISE = {"is_neox_style": True, "use_aux_hidden_state": True, "logit_scale": 1}
"""Fields that may only have the value that a missing one means."""
_MOST_STATES, _LARGEST_BLOCK = 64, 1024


@dataclass(frozen=True)
class DFlashConfig:
    """The shape and the constants of a draft head; hashable, static in programs.

    Attributes:
        layer: of its layers, as of a decoder of these alone; V and E are the model's.
        draft_vocab_size: Vd, tokens that it can guess.
        states: the model's layers whose incoming residual stream it reads; 0 reads the embedding.
        block_size: tokens of a block: the newest one, and those that are guessed.
        mask_token_id: the token that stands in the place of a guess.
    """

    layer: ModelConfig
    draft_vocab_size: int
    states: tuple[int, ...]
    block_size: int
    mask_token_id: int

    @property
    def most_drafts(self) -> int:
        """All of a block but its first token."""
        return self.block_size - 1

    @property
    def drafts_at_once(self) -> bool:
        """One pass gives a block of them."""
        return True

    @property
    def needs_vocabulary(self) -> bool:
        """Whether it guesses other tokens than the model's."""
        return self.draft_vocab_size != self.layer.vocab_size

    def shapes(self) -> dict[str, Shape]:
        """The shape of each parameter, by path, but for an embedding and a vocabulary."""
        layer, E = self.layer, self.layer.hidden_size
        F, D = layer.intermediate_size, layer.head_dim
        H, K = layer.num_attention_heads, layer.num_key_value_heads
        of_layer = {
            "input_layernorm": (E,),
            "mlp.down_proj": (E, F),
            "mlp.gate_proj": (F, E),
            "mlp.up_proj": (F, E),
            "post_attention_layernorm": (E,),
            "self_attn.k_norm": (D,),
            "self_attn.k_proj": (K * D, E),
            "self_attn.o_proj": (E, H * D),
            "self_attn.q_norm": (D,),
            "self_attn.q_proj": (H * D, E),
            "self_attn.v_proj": (K * D, E),
        }
        shapes: dict[str, Shape] = {
            f"layers.{index}.{path}": shape
            for index in range(layer.num_hidden_layers)
            for path, shape in of_layer.items()
        }
        return shapes | {"fc": (E, len(self.states) * E), "hidden_norm": (E,), "norm": (E,)}

    @property
    def values_of_token(self) -> int:
        """Values that pages hold of a token: a key and a value of each layer."""
        layer = self.layer
        return 2 * layer.num_hidden_layers * layer.num_key_value_heads * layer.head_dim

    def file_name(self, path: str, names: Collection[str] = ()) -> str:
        """The name of a parameter's tensor."""
        return tensor_name(path)

    def to_hf(self) -> dict[str, Any]:
        """A config.json object, in the form of the class `DFlashDraftModel`."""
        return {
            **self.layer.to_hf(),
            "architectures": [_CLASS],
            "block_size": self.block_size,
            "draft_vocab_size": self.draft_vocab_size,
            "dflash_config": {
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": [layer - 1 for layer in self.states],
            },
        }


def read_dflash_config(mapping: Mapping[str, Any], model: ModelConfig) -> DFlashConfig:
    """Read the object of a config.json.

    Args:
        mapping: the object.
        model: the one that the head is to draft for.

    Raises:
        ValueError: it describes no head that can be run, or one for another model.
    """
    shape = shape_of(
        mapping, name="a DFlash head", method="dflash", classes=(_CLASS,), family="qwen3"
    )
    options = mapping.get("dflash_config") or {}
    if not isinstance(options, Mapping):
        raise ValueError(f"dflash_config must be an object, got {show(options)}")
    if shape.get("model_type", "qwen3") != "qwen3":
        raise ValueError(f"model_type must be 'qwen3', got {show(shape['model_type'])}")
    refuse(_NOT_COMPUTED, mapping, shape, options)
    for name, only in _OTHERWISE.items():
        for each in (mapping, shape, options):
            if each.get(name, only) not in (only, None):
                raise ValueError(f"{name}={show(each[name])} is not supported in a draft head")
    layer = read_layer(mapping, shape, model, "qwen3")
    if mapping.get("num_target_layers") is not None:
        check_fits("num_target_layers", mapping["num_target_layers"], model.num_hidden_layers)

    def given(name: str) -> Any:
        """A field beside the layers' shape, or in the object of the method's own."""
        value = mapping.get(name)
        value = options.get(name) if value is None else value
        if value is None:
            raise ValueError(f"{name} is missing")
        return value

    return DFlashConfig(
        layer,
        read_draft_vocab_size(mapping, layer),
        _states(mapping, given, model.num_hidden_layers),
        whole_number("block_size", given("block_size"), 2, _LARGEST_BLOCK),
        whole_number("mask_token_id", given("mask_token_id"), 0, model.vocab_size - 1),
    )


def _states(mapping: Mapping[str, Any], given: Any, num_layers: int) -> tuple[int, ...]:
    """The layers that the states enter, which speculators counts, and the other form leave."""
    name, first = "aux_hidden_state_layer_ids", 0
    if mapping.get(SPECULATORS) is None:
        name, first = "target_layer_ids", -1
    layers = given(name)
    if not isinstance(layers, list) or not 0 < len(layers) <= _MOST_STATES:
        raise ValueError(f"{name} must be 1 to {_MOST_STATES} layers, got {show(layers)}")
    # What leaves the last layer is normed in one project, and not in another.
    last = first + num_layers - 1
    return tuple(whole_number(name, layer, first, last) - first for layer in layers)
