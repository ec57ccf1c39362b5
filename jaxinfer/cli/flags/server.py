"""The flags with which a command finds a model of a running server."""

import argparse
import os
from typing import Any

from jaxinfer.cli.client.server import Target, parse_target, served_model
from jaxinfer.cli.flags.engine import engine_arguments
from jaxinfer.cli.flags.fields import flag_of, given
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.process import process_arguments

SERVER_FIELDS = frozenset({"served_model_name", "api_key"})
_KEY_VARIABLES = ("JAXINFER_API_KEY", "OPENAI_API_KEY")


def add_server_flags(parser: "argparse._ActionsContainer") -> None:
    """Add the flags that go with a server's URL: the model and the key."""
    unset: Any = argparse.SUPPRESS
    parser.add_argument(
        "--served-model-name",
        default=unset,
        metavar="NAME",
        help="the model's name there (default: the first that the server lists)",
    )
    parser.add_argument(
        "--api-key",
        default=unset,
        metavar="KEY",
        help=f"sent as a bearer token (default: ${_KEY_VARIABLES[0]} or ${_KEY_VARIABLES[1]})",
    )


def add_url_flags(parser: CommandParser) -> None:
    """Add --url, with which a command starts no engine, and the flags that go with it."""
    group = parser.add_argument_group("a running OpenAI server")
    group.add_argument(
        "--url", help="use a server, such as http://localhost:8000 (default: an engine here)"
    )
    add_server_flags(group)


def check_url_flags(parser: CommandParser, namespace: argparse.Namespace) -> None:
    """End with a mistake if a flag would be ignored."""
    if namespace.url is None:
        if of_a_server := given(namespace, SERVER_FIELDS):
            parser.error(f"{flag_of(next(iter(of_a_server)))} needs --url, the server's")
        return
    adapter = given(namespace, frozenset({"lora"}))
    of_an_engine = {**engine_arguments(namespace), **process_arguments(namespace), **adapter}
    if "model" in of_an_engine:
        parser.error("--url takes no --model; --served-model-name names one of the server's")
    of_an_engine.pop("seed", None)
    if of_an_engine:
        parser.error(f"--url takes no {flag_of(next(iter(of_an_engine)))}: that is the server's")


def seed_argument(namespace: argparse.Namespace) -> dict[str, object]:
    """The seed as a field of a request, if it was given."""
    return given(namespace, frozenset({"seed"}))


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
