"""`jaxinfer NAME ...`: finds the command and passes it the other arguments."""

import importlib
import sys
from collections.abc import Sequence

from jaxinfer.cli.process import OK, USAGE, end_process

COMMANDS = {
    "generate": "write text after a prompt, or after many",
    "chat": "talk with a model in the terminal",
    "embed": "write the vectors of texts",
    "bench": "measure a running OpenAI server under load",
    "profile": "say which part of a model takes the time of its steps",
    "convert": "convert a checkpoint between safetensors and Orbax, or from GGUF",
    "evaluate": "compare a model with another over texts: perplexity, KL, error of each layer",
    "pull": "download a model from the Hugging Face hub into its local cache",
    "list": "list the models in the cache, and the families that run them",
    "rm": "remove a model from the cache",
    "serve": "serve a model over HTTP, as OpenAI's and Anthropic's API",
    "launch": "start a coding agent (claude, codex, opencode) on a served model",
    "plan": "estimate a model's memory and speed on a GPU, and need neither",
    "env": "show versions, devices and the backend that an engine would use",
}


def usage() -> str:
    """The text of `jaxinfer --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    after = "`jaxinfer COMMAND --help` lists a command's options."
    return "\n".join(["usage: jaxinfer COMMAND [OPTIONS]", "", "commands:", *lines, "", after])


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` names and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return OK if arguments else USAGE
    name, *rest = arguments
    if name in ("-V", "--version"):
        from jaxinfer import __version__

        print(f"jaxinfer {__version__}")
        return OK
    if name not in COMMANDS:
        from jaxinfer.checks import did_you_mean

        near = did_you_mean(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        print(f"jaxinfer: error: no command {name!r}{near}", file=sys.stderr)
        return USAGE
    try:
        return importlib.import_module(f"jaxinfer.{name}").main(rest)
    except SystemExit as leaving:  # argparse ends --help and mistakes this way
        return leaving.code if isinstance(leaving.code, int) else USAGE


def main() -> None:
    """Entry point of the `jaxinfer` program."""
    end_process(dispatch(sys.argv[1:]))


if __name__ == "__main__":
    main()
