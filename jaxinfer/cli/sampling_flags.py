"""The flags of sampling; the destination of each is a `SamplingParams` field."""

import argparse
from collections.abc import Mapping
from typing import Any

from jaxinfer.cli.parser import given
from jaxinfer.cli.texts import text_argument

SAMPLING_FIELDS = frozenset(
    {
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "stop",
        "ignore_eos",
    }
)


def add_sampling_flags(parser: argparse.ArgumentParser, *, max_tokens: int | str) -> None:
    """Add the sampling flags; the defaults are the model's own.

    Args:
        parser: the command's.
        max_tokens: the command's own default, for --help.
    """
    unset: Any = argparse.SUPPRESS
    group = parser.add_argument_group("sampling (defaults are the model's)")
    group.add_argument(
        "-m",
        "--max-tokens",
        type=int,
        default=unset,
        help=f"maximum number of tokens to generate (default: {max_tokens})",
    )
    group.add_argument(
        "--min-tokens",
        type=int,
        default=unset,
        help="minimum number of tokens to generate (default: 0)",
    )
    group.add_argument(
        "--temp",
        "--temperature",
        dest="temperature",
        type=float,
        default=unset,
        help="0 always takes the likeliest token",
    )
    group.add_argument("--top-p", type=float, default=unset, help="nucleus: likeliest mass kept")
    group.add_argument("--top-k", type=int, default=unset, help="likeliest tokens kept (0: all)")
    group.add_argument(
        "--min-p", type=float, default=unset, help="drop tokens below this share of the likeliest"
    )
    for name, what in (
        ("repetition", "divide the logits of tokens seen (1: off)"),
        ("presence", "subtract from tokens already written (0: off)"),
        ("frequency", "subtract for each time a token was written (0: off)"),
    ):
        group.add_argument(f"--{name}-penalty", type=float, default=unset, help=what)
    group.add_argument(
        "--stop",
        action="append",
        type=text_argument,
        default=unset,
        help="stop at this text (may be repeated)",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", default=unset, help="go on past the end-of-text token"
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
