"""The flags with which a command finds a model of a running server."""

import argparse
import os
from typing import Any

from jaxinfer.cli.parser import given
from jaxinfer.cli.server import Target, parse_target, served_model

SERVER_FIELDS = frozenset({"served_model_name", "api_key"})
_KEY_VARIABLES = ("JAXINFER_API_KEY", "OPENAI_API_KEY")


def add_server_flags(parser: "argparse._ActionsContainer") -> None:
    """Add what goes with the flag of a server's URL."""
    unset: Any = argparse.SUPPRESS
    parser.add_argument(
        "--served-model-name",
        default=unset,
        metavar="NAME",
        help="the model to ask (default: the first that the server lists)",
    )
    parser.add_argument(
        "--api-key",
        default=unset,
        metavar="KEY",
        help=f"sent as a bearer token (default: ${_KEY_VARIABLES[0]} or ${_KEY_VARIABLES[1]})",
    )


def chosen_server(url: str, namespace: argparse.Namespace) -> tuple[Target, str]:
    """The server of a URL and the model to ask there.

    Raises:
        ValueError: the URL or the key is wrong, or the server refuses or lists no model.
        OSError: it can't be reached.
    """
    flags: Any = given(namespace, SERVER_FIELDS)
    from_environment = (os.environ.get(name) for name in _KEY_VARIABLES)
    key = flags.get("api_key") or next(filter(None, from_environment), None)
    target = parse_target(url, key)
    return target, flags.get("served_model_name") or served_model(target)
