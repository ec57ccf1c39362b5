"""`jaxinfer launch`: a coding agent on a served model, with a server if none runs."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer import serve
from jaxinfer.cli.client.server import Target, get_json, parse_target
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.serve import service_settings
from jaxinfer.cli.launch.background_server import health, running_server
from jaxinfer.cli.launch.foreground import ending_in_order, run_in_foreground
from jaxinfer.cli.launch.programs import KEY_VARIABLE, PROGRAMS, ServedName
from jaxinfer.cli.process import FAILED, OK, end_process, print_error, run_command

_EXAMPLES = """All options of `jaxinfer serve` are taken too: --host and --port say where the server
is; the others are for one that is started where none answers, and that ends with the program.

examples:
  jaxinfer launch claude --model Qwen/Qwen3-8B
  jaxinfer launch codex --port 8001 -- exec "explain this repository"
  jaxinfer launch opencode --print"""

_ANY_KEY = "jaxinfer"
_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def build_parser() -> CommandParser:
    """The command's own options."""
    parser = CommandParser(
        "launch", "Start a coding agent that uses a model of this machine.", _EXAMPLES
    )
    parser.usage = f"{parser.prog} PROGRAM [--print] [OPTIONS OF serve] [-- ARGUMENTS OF PROGRAM]"
    parser.add_argument(
        "program", choices=tuple(PROGRAMS), metavar="PROGRAM", help=", ".join(PROGRAMS)
    )
    parser.add_argument(
        "--print", action="store_true", help="print what would be set, and start nothing"
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="do not say that a server is started"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run_command("launch", lambda: _main(list(sys.argv[1:] if argv is None else argv)))


class LaunchArguments(NamedTuple):
    """A command line in its parts.

    Attributes:
        only_print: start nothing.
        quiet: do not say that a server is started.
        for_server: the options of `jaxinfer serve`, as they were written.
        flags: these, read.
        for_program: what followed "--".
    """

    program: str
    only_print: bool
    quiet: bool
    for_server: list[str]
    flags: argparse.Namespace
    for_program: list[str]


def read_arguments(argv: list[str]) -> LaunchArguments:
    """The parts of a command line.

    Raises:
        ValueError: as `jaxinfer.serve.read_arguments`.
        SystemExit: an option is wrong; one line says so.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    own, for_server = build_parser().parse_known_args(argv[:end])
    flags = serve.read_arguments(for_server)
    return LaunchArguments(own.program, own.print, own.quiet, for_server, flags, argv[end + 1 :])


def _main(argv: list[str]) -> int:
    arguments = read_arguments(argv)
    name, flags, target = arguments.program, arguments.flags, _target(arguments.flags)
    program, path = PROGRAMS[name], shutil.which(name)
    if not arguments.only_print and path is not None:
        server = running_server(target, arguments.for_server, quiet=arguments.quiet)
        with ending_in_order(), server:
            settings = program.settings(_served(flags, target))
            command = [path, *settings.arguments, *arguments.for_program]
            return run_in_foreground(command, settings.environment)
    settings = program.settings(_expected(flags, target))
    for variable, value in settings.environment.items():
        print(f"export {variable}={shlex.quote(value)}")
    print(shlex.join([name, *settings.arguments, *arguments.for_program]))
    if arguments.only_print:
        return OK
    print_error("launch", f"there is no {name} here; `{program.install}` installs it")
    return FAILED


def _target(flags: argparse.Namespace) -> Target:
    """The address of the server."""
    if flags.uds is not None or flags.port == 0:
        raise ValueError("the programs need a port that is known; leave out --uds and --port 0")
    host: str = flags.host
    host = _ALL_ADDRESSES.get(host, host)
    host = f"[{host}]" if ":" in host else host
    keys = getattr(flags, "api_keys", None) or [os.environ.get(KEY_VARIABLE) or None]
    return parse_target(f"http://{host}:{flags.port}", keys[0])


def _expected(flags: argparse.Namespace, target: Target) -> ServedName:
    """The model as it is served, or would be if a server were started."""
    if health(target) == 200:
        return _served(flags, target)
    name = service_settings(flags, flags.host)["http"]["served_model_names"][0]
    return ServedName(target.url, name, target.api_key or _ANY_KEY)


def _served(flags: argparse.Namespace, target: Target) -> ServedName:
    """The model that the server has."""
    listed = get_json(target, "/v1/models")
    try:
        models = {each["id"]: each.get("max_model_len") for each in listed["data"]}
        first = next(iter(models))
    except (AttributeError, KeyError, StopIteration, TypeError):
        raise ValueError(f"{target.url}/v1/models lists no model") from None
    wanted = getattr(flags, "served_model_names", None) or [getattr(flags, "model", None)]
    name = wanted[0] or first
    if name not in models:
        raise ValueError(
            f"{target.url} serves {', '.join(models)}, not {name}; leave out the name, or choose "
            "another --port for a server of its own"
        )
    return ServedName(target.url, name, target.api_key or _ANY_KEY, models[name])


if __name__ == "__main__":
    end_process(main())
