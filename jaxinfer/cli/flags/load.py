"""The flags of `jaxinfer bench --serve`: the load on a server, its requests and their rate."""

import argparse
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.parser import given, positive_integer
from jaxinfer.cli.flags.server import add_server_flags, chosen_server

if TYPE_CHECKING:
    from jaxinfer.cli.client.load import Load

LOAD_FIELDS = frozenset(
    {
        "num_prompts",
        "input_len",
        "output_len",
        "vocab_size",
        "request_rate",
        "max_concurrency",
        "client_processes",
        "goodput",
        "served_model_name",
        "api_key",
    }
)


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; without --serve none of them may be given."""
    unset: Any = argparse.SUPPRESS
    group = parser.add_argument_group("load on a server, with --serve")
    add_server_flags(group)
    for name, default, what in (
        ("num-prompts", "100", "requests in all"),
        ("input-len", "1024", "random token ids of each prompt"),
        ("output-len", "128", "tokens of each answer"),
        ("vocab-size", "256", "prompts hold token ids below this"),
        ("max-concurrency", "no limit", "requests under way at most"),
        ("client-processes", "1", "processes that send the requests"),
    ):
        group.add_argument(
            f"--{name}", type=positive_integer, default=unset, help=f"{what} (default: {default})"
        )
    group.add_argument(
        "--request-rate",
        type=_rate,
        default=unset,
        help="mean arrivals a second of a Poisson process (default: inf, all at once)",
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        default=unset,
        help="also count requests that meet ttft:MS, tpot:MS and e2el:MS (default: none)",
    )


def load_arguments(namespace: argparse.Namespace) -> dict[str, object]:
    """The flags of a load that the user gave."""
    return given(namespace, LOAD_FIELDS)


def load_report(namespace: argparse.Namespace) -> dict[str, Any]:
    """Send the load that the flags ask for; the figures.

    Raises:
        ValueError: a flag is wrong, or the server refuses.
        OSError: the server can't be reached.
    """
    from jaxinfer.cli.client.load import measure_server
    from jaxinfer.cli.client.load_report import parse_slos

    arguments = load_arguments(namespace)
    slos = parse_slos(arguments.get("goodput", []))  # pyright: ignore[reportArgumentType]
    target, model = chosen_server(namespace.serve, namespace)
    num_processes: Any = arguments.get("client_processes", 1)
    load = _load(model, arguments, getattr(namespace, "seed", 0))
    return measure_server(target, load, slos=slos, num_processes=num_processes)


def _load(model: str, arguments: dict[str, Any], seed: int) -> "Load":
    from jaxinfer.cli.client.load import Load

    defaults = {"num_prompts": 100, "input_len": 1024, "output_len": 128, "vocab_size": 256}
    fields = ("num_prompts", "input_len", "output_len", "vocab_size", "max_concurrency")
    fields += ("request_rate",)
    own = {name: arguments[name] for name in fields if name in arguments}
    return Load(model=model, seed=seed, **(defaults | own))


def _rate(text: str) -> float | None:
    """Arrivals a second; None for "inf".

    Raises:
        argparse.ArgumentTypeError: it is no positive number.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number or inf, got {text!r}")
    return None if rate == float("inf") else rate
