"""The shape of an EAGLE-3 draft head, from either of the two published forms of its config.json."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.checks import show
from jaxinfer.model.checkpoint.parameter_names import tensor_name
from jaxinfer.model.checkpoint.source_plan import Shape
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.head_config import (
    read_draft_vocab_size,
    read_layer,
    refuse,
    shape_of,
)
from jaxinfer.model.field_checks import flag, whole_number

LAYERS = ("midlayer.", "layers.0.")
"""The published prefixes of the layer's tensors."""
_CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_NOT_COMPUTED = ("attention_bias", "mlp_bias")
_FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")
_NUM_STATES = 3


@dataclass(frozen=True)
class Eagle3Config:
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

    @property
    def most_drafts(self) -> None:
        """Any number, one after the other."""

    @property
    def drafts_at_once(self) -> bool:
        """Each draft takes a pass."""
        return False

    @property
    def needs_vocabulary(self) -> bool:
        """It has rows of a vocabulary of its own."""
        return True

    def shapes(self) -> dict[str, Shape]:
        """The shape of each parameter, by path, but for an embedding and the vocabulary."""
        layer, E = self.layer, self.layer.hidden_size
        F, D = layer.intermediate_size, layer.head_dim
        H, K = layer.num_attention_heads, layer.num_key_value_heads
        norms: dict[str, Shape] = {"input_norm": (3 * E,)} if self.norm_before_fc else {}
        norms |= {f"fc_norm.{i}": (E,) for i in range(_NUM_STATES)} if self.fc_norm else {}
        return norms | {
            "fc": (E, 3 * E),
            "layer.hidden_norm": (E,),
            "layer.input_layernorm": (E,),
            "layer.mlp.down_proj": (E, F),
            "layer.mlp.gate_proj": (F, E),
            "layer.mlp.up_proj": (F, E),
            "layer.post_attention_layernorm": (E,),
            "layer.self_attn.k_proj": (K * D, 2 * E),
            "layer.self_attn.o_proj": (E, H * D),
            "layer.self_attn.q_proj": (H * D, 2 * E),
            "layer.self_attn.v_proj": (K * D, 2 * E),
            "norm": (E,),
        }

    @property
    def values_of_token(self) -> int:
        """Values that pages hold of a token: a key, a value and a feature."""
        return 2 * self.layer.num_key_value_heads * self.layer.head_dim + self.layer.hidden_size

    def file_name(self, path: str, names: Collection[str] = ()) -> str:
        """The name of a parameter's tensor in files with tensors of these names."""
        name = tensor_name(path)
        if not path.startswith("layer."):
            return name
        found = (each for each in LAYERS if any(other.startswith(each) for other in names))
        return next(found, LAYERS[0]) + name.removeprefix("layer.")

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


def read_eagle3_config(mapping: Mapping[str, Any], model: ModelConfig) -> Eagle3Config:
    """Read the object of a config.json.

    Args:
        mapping: the object.
        model: the one that the head is to draft for.

    Raises:
        ValueError: it describes no head that can be run, or one for another model.
    """
    shape = shape_of(
        mapping, name="an EAGLE-3 head", method="eagle3", classes=_CLASSES, family="llama"
    )
    refuse(_NOT_COMPUTED, mapping, shape)
    layer = read_layer(mapping, shape, model, "llama")
    if layer.num_hidden_layers != 1:
        raise ValueError(
            f"num_hidden_layers must be 1 in a draft head, got {layer.num_hidden_layers}"
        )
    states = _states(mapping, model.num_hidden_layers)
    beside = mapping.get("eagle_config") or {}  # where some heads have them
    flags = {name: flag(name, mapping.get(name, beside.get(name)) or False) for name in _FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise ValueError("norm_before_fc and fc_norm exclude each other")
    return Eagle3Config(layer, read_draft_vocab_size(mapping, layer), states, **flags)


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
