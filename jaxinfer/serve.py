"""`jaxinfer serve`: a model behind OpenAI's and Anthropic's HTTP interfaces, in processes."""

import argparse
import os
import socket
import tempfile
from collections.abc import Sequence
from typing import Any

from jaxinfer.cli.engine import speaking_of_flags
from jaxinfer.cli.flags.config_file import with_config_file
from jaxinfer.cli.flags.engine import ADAPTER_NEEDS, add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.process import is_one_of_several
from jaxinfer.cli.flags.serve import (
    SERVE_DEFAULTS,
    add_serve_flags,
    default_front_ends,
    service_settings,
)
from jaxinfer.cli.flags.vllm_flags import instead_of_vllm_flags
from jaxinfer.cli.process import end_process, run_command

_EXAMPLES = """examples:
  jaxinfer serve
  jaxinfer serve Qwen/Qwen3-8B --port 8000 --api-key secret
  jaxinfer serve --config service.yaml --max-num-seqs 64

  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "jaxinfer", "prompt": "Once upon a time", "max_tokens": 20}'"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer serve`."""
    description = "Serve a model over HTTP, as OpenAI's and Anthropic's API."
    parser = CommandParser("serve", description, _EXAMPLES, vllm="serve")
    parser.add_argument(
        "positional_model", nargs="?", metavar="MODEL", help="as --model (default: the bundled one)"
    )
    add_serve_flags(parser)
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing but warnings and errors"
    )
    add_engine_flags(parser, defaults=SERVE_DEFAULTS)
    parser.needs |= ADAPTER_NEEDS
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    import sys

    return run_command("serve", lambda: _main(list(sys.argv[1:] if argv is None else argv)))


def _main(argv: list[str]) -> int:
    return _serve(read_arguments(argv))


def read_arguments(argv: list[str]) -> argparse.Namespace:
    """The flags of a command line, with those of its configuration file.

    Raises:
        ValueError: the file can't be read, or holds something else than flags.
        SystemExit: a flag is wrong; one line says so.
    """
    parser = build_parser()
    argv = with_config_file(argv, parser, instead_of_vllm_flags())
    arguments = parser.parse_args(argv)
    if arguments.positional_model is not None:
        arguments.model = arguments.positional_model
    if is_one_of_several(arguments):
        parser.error(
            "an engine over several hosts can't be served yet; start one service for each host and "
            "a proxy in front"
        )
    if arguments.lora_modules and not getattr(arguments, "enable_lora", False):
        parser.error("--lora-modules needs --enable-lora")
    given = vars(arguments)
    if given.get("enable_eplb") and not given.get("enable_admin"):
        parser.error(
            "--enable-eplb needs --enable-admin, whose route /rebalance_experts moves experts; "
            "add that, or leave --enable-eplb out"
        )
    return arguments


def _serve(arguments: argparse.Namespace) -> int:
    import asyncio

    from jaxinfer.cli.service.own_middleware import load_middleware
    from jaxinfer.cli.service.supervisor import ServicePlan, Supervisor
    from jaxinfer.cli.service.unblocked_stderr import unblocked_stderr
    from jaxinfer.cli.service.unix_socket import listen_at

    load_middleware(arguments.middleware)  # so that a mistake is one line
    engine = {"online": True, "show_progress": not arguments.quiet, **engine_arguments(arguments)}
    _check(engine)
    at_path = arguments.uds is not None
    with (
        listen_at(arguments.uds) if at_path else listen(arguments.host, arguments.port) as listener,
        tempfile.TemporaryDirectory(prefix="jaxinfer-") as directory,  # for this user alone
        unblocked_stderr(),
    ):
        path = os.path.join(directory, "engine")
        counts = os.path.join(directory, "counts")
        os.mkdir(counts)
        address = arguments.uds or listener.getsockname()[0]
        settings = service_settings(arguments, address)
        place = f"/v1 at {arguments.uds}" if at_path else f"{_url(listener)}/v1"
        said = f"{place} with model {settings['http']['served_model_names'][0]}"
        plan = ServicePlan(
            engine={
                "engine": engine,
                "adapters": arguments.lora_modules,
                "limits": settings["limits"],
                "socket": path,
            },
            front_end={
                "socket": path,
                "http": settings["http"],
                "connections": settings["connections"],
                "middleware": arguments.middleware,
                "monitoring": {
                    "directory": counts,
                    "prefix": arguments.metrics_prefix,
                    "access_log": arguments.access_log,
                },
                "shutdown_timeout": arguments.shutdown_timeout,
            },
            num_front_ends=arguments.api_server_count or default_front_ends(),
            listener=listener,
            shutdown_timeout=arguments.shutdown_timeout,
            announcement="" if arguments.quiet else said,
        )
        return asyncio.run(Supervisor(plan).run())


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections.

    Raises:
        ValueError: the address can't be had; one line that says why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, UnicodeError) as error:  # a name that can't be one
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"can't listen on port {port} of {host}: {reason}; end the program that uses it, or "
            "choose another --port (0 takes a free one) or --host"
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _check(engine: dict[str, Any]) -> None:
    """Refuse engine arguments that contradict each other before any process is started."""
    from jaxinfer.config import EngineConfig

    with speaking_of_flags():
        EngineConfig.from_keywords(engine)


if __name__ == "__main__":
    end_process(main())
