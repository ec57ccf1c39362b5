"""What an engine keeps of activations: `LLM(capture=Capture(...))`."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, no_type_check

from jaxinfer.checks import show

CapturedValue = Literal["residual", "attention_out", "mlp_out", "logits"]
CapturedTokens = Literal["prompt", "generated", "last", "all"]

CAPTURED_VALUES: tuple[str, ...] = get_args(CapturedValue)
CAPTURED_TOKENS: tuple[str, ...] = get_args(CapturedTokens)


@no_type_check  # its fields check themselves, by name; run-time checkers would come first
@dataclass(frozen=True)
class Capture:
    """The activations that an engine keeps of every token, for requests that ask for theirs.

    They lie in pages beside the keys and values, so that tokens found in the prefix cache have
    theirs, too, and the cache holds fewer tokens. `CompletionOutput.captured` has what a request
    asks for, by `LLM.generate(..., capture=True)`: `[tokens, E]` of each layer in the activations'
    dtype, or float32 `[tokens, V]` of the logits. A token has activations once it is fed, which the
    last generated one never is.

    Attributes:
        layers: one index or several, from 0; None is all. Logits are of no layer.
        what: "residual", the residual stream behind a layer, which the next one reads (Hugging
            Face's ``hidden_states[i + 1]``, but for the last layer's, which is taken before the
            final norm); "attention_out" or "mlp_out", what the last product of a layer's attention
            or MLP gives; or "logits", of the model itself, without any edit.
        tokens: those whose activations a request gets that says nothing else: of the "prompt", the
            "generated" ones, the prompt's "last", or "all".

    Raises:
        TypeError: `layers` are no integers.
        ValueError: a field is none of its values; names it.
    """

    layers: int | Sequence[int] | None = None
    what: CapturedValue = "residual"
    tokens: CapturedTokens = "all"

    def __post_init__(self) -> None:
        """Check the fields; layers are kept in ascending order."""
        if self.layers is not None:
            object.__setattr__(self, "layers", layer_indices("capture", self.layers))
        if self.what not in CAPTURED_VALUES:
            raise ValueError(
                f"capture: what must be one of {', '.join(CAPTURED_VALUES)}, got {show(self.what)}"
            )
        check_tokens(self.tokens)
        if self.what == "logits" and self.layers is not None:
            raise ValueError('capture: what="logits" has no layers; leave them out')


def check_tokens(tokens: object) -> CapturedTokens:
    """These as `CapturedTokens`; ValueError if they are none."""
    if not isinstance(tokens, str) or tokens not in CAPTURED_TOKENS:
        raise ValueError(
            f"capture: tokens must be one of {', '.join(CAPTURED_TOKENS)}, got {show(tokens)}"
        )
    return cast(CapturedTokens, tokens)


def layer_indices(name: str, layers: Any) -> tuple[int, ...]:
    """One index or several as an ascending tuple without repetitions.

    Raises:
        TypeError: something else; names the argument.
        ValueError: there is none, or one is negative.
    """
    given = [layers] if hasattr(layers, "__index__") else layers
    try:
        indices = {operator.index(layer) for layer in given}
        if isinstance(layers, str) or any(isinstance(layer, bool) for layer in given):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"{name}: layers must be an integer or several, got {show(layers)}"
        ) from None
    if not indices:
        raise ValueError(f"{name}: layers is empty; name one, or leave it out for all")
    if min(indices) < 0:
        raise ValueError(f"{name}: layers are counted from 0, got {min(indices)}")
    return tuple(sorted(indices))


def check_layers(name: str, layers: Sequence[int], num_layers: int) -> None:
    """ValueError if the model has no such layer; names the first."""
    for layer in layers:
        if layer >= num_layers:
            raise ValueError(
                f"{name}: there is no layer {layer}; the model has layers 0 to {num_layers - 1}"
            )
