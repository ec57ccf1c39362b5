"""`jaxinfer bench`: sends a load to a running OpenAI server, and measures its answers."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from jaxinfer.cli.client.load import Load
from jaxinfer.cli.client.load_report import measure_server, parse_slos, report_lines
from jaxinfer.cli.flags.fields import add_field_flag, given
from jaxinfer.cli.flags.parser import CommandParser, positive_integer
from jaxinfer.cli.flags.server import add_server_flags, chosen_server
from jaxinfer.cli.process import FAILED, OK, end_process, run_command

_LOAD_FIELDS = frozenset(
    {*("num_prompts", "input_len", "output_len", "vocab_size"), "max_concurrency", "request_rate"}
)
_EXAMPLES = """It starts no engine: start a server first, in another terminal, with
  jaxinfer serve bundled-experts

examples:
  jaxinfer bench --serve http://localhost:8000 --num-prompts 512 --input-len 1024
  jaxinfer bench --serve http://localhost:8000 --request-rate 8 --goodput ttft:500 tpot:50"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer bench`."""
    parser = CommandParser("bench", "Measure a running OpenAI server under load.", _EXAMPLES)
    parser.add_argument(
        "--serve",
        required=True,
        metavar="URL",
        help="the server, such as http://localhost:8000 of `jaxinfer serve` (it must be given)",
    )
    add_server_flags(parser)
    for name in Load.__dataclass_fields__:
        if name in _LOAD_FIELDS:
            reading = {"type": _rate if name == "request_rate" else positive_integer}
            add_field_flag(parser, Load, name, flagged=_LOAD_FIELDS, reading=reading)
    parser.add_argument(
        "--client-processes",
        type=positive_integer,
        default=1,
        help="processes that send the requests (default: 1)",
    )
    parser.add_argument(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        default=[],
        help="also count requests that meet ttft:MS, tpot:MS and e2el:MS (default: none)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="no report: the status says all")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("bench", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    """Send a load to a server and print its figures; the exit status."""
    slos = parse_slos(arguments.goodput)
    target, model = chosen_server(arguments.serve, arguments)
    fields: dict[str, Any] = given(arguments, _LOAD_FIELDS)
    load = Load(model=model, seed=arguments.seed, **fields)
    report = measure_server(target, load, slos=slos, num_processes=arguments.client_processes)
    if not arguments.quiet:
        shown = json.dumps(report, indent=2) if arguments.json else "\n".join(report_lines(report))
        print(shown)
    return FAILED if report["errors"] else OK


def _rate(text: str) -> float | None:
    """Arrivals a second; None for "inf"."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number or inf, got {text!r}")
    return None if rate == float("inf") else rate


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
