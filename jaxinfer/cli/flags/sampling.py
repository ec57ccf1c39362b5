"""The flags of sampling; the destination of each is a `SamplingParams` field."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.cli.flags.parser import given
from jaxinfer.cli.texts import text_argument

_ON: Mapping[str, Any] = {"action": "store_true"}
_TEXTS: Mapping[str, Any] = {"action": "append", "type": text_argument}
_INTEGER: Mapping[str, Any] = {"type": int}
_NUMBER: Mapping[str, Any] = {"type": float}

# The flags of each field, their parsing, and their help.
_FLAGS: Mapping[str, tuple[Sequence[str], Mapping[str, Any], str]] = {
    "max_tokens": (
        ("-m", "--max-tokens"),
        _INTEGER,
        "maximum number of tokens to generate (default: {max_tokens})",
    ),
    "min_tokens": (
        ("--min-tokens",),
        _INTEGER,
        "minimum number of tokens to generate (default: 0)",
    ),
    "temperature": (("--temp", "--temperature"), _NUMBER, "randomness; 0 is greedy decoding"),
    "top_p": (("--top-p",), _NUMBER, "keep likeliest tokens up to this probability"),
    "top_k": (("--top-k",), _INTEGER, "keep this many likeliest tokens (0: all)"),
    "min_p": (("--min-p",), _NUMBER, "drop tokens below this share of the likeliest one"),
    "repetition_penalty": (
        ("--repetition-penalty",),
        _NUMBER,
        "divide the logits of tokens in prompt or output (1: off)",
    ),
    "presence_penalty": (
        ("--presence-penalty",),
        _NUMBER,
        "subtract from logits of tokens in the output (0: off)",
    ),
    "frequency_penalty": (
        ("--frequency-penalty",),
        _NUMBER,
        "subtract for each time a token is in the output (0: off)",
    ),
    "stop": (("--stop",), _TEXTS, "stop at this text (may be repeated)"),
    "ignore_eos": (("--ignore-eos",), _ON, "continue past the end-of-text token"),
}
SAMPLING_FIELDS = frozenset(_FLAGS)


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int | str) -> None:
    """Add the sampling flags; the defaults are the model's own.

    Args:
        parser: the command's.
        max_tokens: the command's own default, for --help.
    """
    group = parser.add_argument_group("sampling (defaults are the model's)")
    for field, (flags, reading, text) in _FLAGS.items():
        group.add_argument(
            *flags,
            dest=field,
            default=argparse.SUPPRESS,
            help=text.format(max_tokens=max_tokens),
            **reading,
        )


def sampling_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The sampling fields that the user gave."""
    return given(namespace, SAMPLING_FIELDS)


def check_sampling(fields: Mapping[str, Any]) -> None:
    """Check sampling fields as far as they can be without a model.

    Raises:
        TypeError, ValueError: as `SamplingParams`.
    """
    from jaxinfer.sampling_params import SamplingParams

    given: dict[str, Any] = {"max_tokens": None, **fields}
    SamplingParams(**given)
