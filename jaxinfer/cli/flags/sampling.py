"""The flags of sampling; the destination of each is a `SamplingParams` field."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.cli.flags.fields import add_field_flag, given
from jaxinfer.cli.texts import text_argument
from jaxinfer.sampling_params import SamplingParams

_FLAGS: Mapping[str, Sequence[str]] = {
    "max_tokens": ("-m", "--max-tokens"),
    "min_tokens": (),
    "temperature": ("--temp", "--temperature"),
    "top_p": (),
    "top_k": (),
    "min_p": (),
    "repetition_penalty": (),
    "presence_penalty": (),
    "frequency_penalty": (),
    "stop": (),
    "ignore_eos": (),
}
"""The fields that have flags, and the names of flags that are not the field's alone."""
_READ: Mapping[str, Mapping[str, Any]] = {
    "stop": {"action": "append", "type": text_argument},
    "ignore_eos": {"action": "store_true"},
}
SAMPLING_FIELDS = frozenset(_FLAGS)


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int | str) -> None:
    """Add the sampling flags; defaults are the model's own, but for the command's `max_tokens`."""
    group = parser.add_argument_group("sampling (defaults are the model's)")
    shown = {"max_tokens": str(max_tokens), "min_tokens": "0"}
    for name, flags in _FLAGS.items():
        default, reading = shown.get(name, ""), _READ.get(name, {})
        add_field_flag(
            group,
            SamplingParams,
            name,
            *flags,
            flagged=SAMPLING_FIELDS,
            default=default,
            reading=reading,
        )


def sampling_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The sampling fields that the user gave."""
    return given(namespace, SAMPLING_FIELDS)


def check_sampling(fields: Mapping[str, Any]) -> None:
    """Check sampling fields without a model, by the errors of `SamplingParams`."""
    given: dict[str, Any] = {"max_tokens": None, **fields}
    SamplingParams(**given)
