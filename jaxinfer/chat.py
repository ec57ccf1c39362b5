"""`jaxinfer chat`: a conversation with a model in the terminal."""

import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.flags.adapter import adapter_directory, adapter_settings, add_lora_flag
from jaxinfer.cli.flags.engine import ADAPTER_FIELDS, add_engine_flags
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.flags.sampling import add_sampling_flags, check_sampling, sampling_arguments
from jaxinfer.cli.flags.server import (
    add_url_flags,
    check_url_flags,
    chosen_server,
    seed_argument,
)
from jaxinfer.cli.process import OK, end_process, print_error, run_command
from jaxinfer.cli.texts import text_argument

if TYPE_CHECKING:
    import argparse

    from jaxinfer import LLM
    from jaxinfer.cli.answers.local_model import LocalModel
    from jaxinfer.cli.client.served_model import ServedModel
    from jaxinfer.cli.conversation import Conversation

_MAX_TOKENS = 2048


def build_parser() -> CommandParser:
    """The flags of `jaxinfer chat`."""
    parser = CommandParser("chat", "Chat with a model; /help in the chat lists its commands.")
    parser.add_argument("--system", type=text_argument, help="system message (default: none)")
    parser.add_argument("--no-thinking", action="store_true", help="turn thinking off")
    parser.add_argument("-q", "--quiet", action="store_true", help="no statistics, no progress")
    add_sampling_flags(parser, max_tokens=f"{_MAX_TOKENS}, at most half of the context")
    add_lora_flag(parser)
    add_url_flags(parser)
    own = {"max_num_seqs": "1", "compile_ahead": "at first use", "seed": "another each time"}
    add_engine_flags(parser, defaults=own, without=ADAPTER_FIELDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    check_url_flags(parser, arguments)
    return run_command("chat", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.answers.local_model import LocalModel
    from jaxinfer.cli.client.served_model import ServedModel
    from jaxinfer.cli.engine import open_engine, speaking_of_flags
    from jaxinfer.cli.platform import start_platform

    with speaking_of_flags():
        check_sampling(sampling_arguments(arguments))
    if arguments.url is not None:
        target, name = chosen_server(arguments.url, arguments)
        if not arguments.quiet:
            print(f"{name} at {target.url}", file=sys.stderr)
        _converse(ServedModel(target, name), arguments, seed_argument(arguments))
        return OK
    start_platform(process_arguments(arguments))
    # Another conversation every time, unless --seed asks for the same one.
    defaults = {"compile_ahead": False, "max_num_seqs": 1, "seed": secrets.randbits(31)}
    adapter = adapter_directory(arguments)
    defaults |= adapter_settings(adapter)
    with open_engine(arguments, defaults, quiet=arguments.quiet) as llm:
        if llm.follows:
            llm.follow()
            return OK
        model = LocalModel(llm, adapter)
        # A missing template is an error now, not after the user has typed a message.
        model.request([{"role": "user", "content": "hello"}], {})
        _converse(model, arguments, {"max_tokens": _default_max_tokens(llm)})
    return OK


def _default_max_tokens(llm: "LLM") -> int:
    """Enough for a long answer, yet at most half of what a short context holds."""
    return min(_MAX_TOKENS, max(1, llm.max_model_len // 2))


def _converse(
    model: "LocalModel | ServedModel", arguments: "argparse.Namespace", sampling: dict[str, Any]
) -> None:
    """Read and answer until the user leaves."""
    from jaxinfer.cli.conversation import Conversation
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.terminal import prepare_line_editing, read_message
    from jaxinfer.cli.texts import prepare_lines

    prepare_lines()
    conversation = Conversation(
        system=arguments.system,
        sampling=sampling | sampling_arguments(arguments),
        thinking=False if arguments.no_thinking else None,
    )
    prepare_line_editing()
    if sys.stdin.isatty():
        print("/help lists commands, Ctrl-D leaves", file=sys.stderr)
    while True:
        try:
            line = read_message()
            if line.startswith("/"):
                reply = conversation.run_slash_command(line)
                if reply is None:
                    return
                print(reply, file=sys.stderr)
            elif line.strip():
                with speaking_of_flags():
                    _answer(model, conversation, line, arguments.quiet)
        except EOFError:
            return
        except KeyboardInterrupt:  # at the prompt, or a second one while an answer ends
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
        # Not text, a wrong setting, a conversation that has grown too long: nothing has changed.
        except ValueError as error:
            print_error("chat", " ".join(str(error).split()))


def _answer(model: Any, conversation: "Conversation", line: str, quiet: bool) -> None:
    """Answer `line`; Ctrl-C stops the answer and keeps what has been said.

    Raises:
        ValueError: the conversation does not fit the model, a setting is out of its range, or a
            server refuses or goes away.
        KeyboardInterrupt: a second Ctrl-C.
    """
    from jaxinfer.cli.answers.answer import Answer
    from jaxinfer.cli.answers.statistics import answer_line
    from jaxinfer.cli.answers.turn import is_thinking, take_turn
    from jaxinfer.cli.terminal import note

    messages = conversation.messages(line)
    request = model.request(messages, conversation.sampling, conversation.thinking)
    answer = Answer()
    pieces = model.stream(request, answer)
    said, is_whole = take_turn(conversation, line, answer, pieces, inside=request.inside)
    if not is_whole:
        forgotten = f"before anything was said, so your message is forgotten{model.when_stopped}"
        note(f"(stopped{'; what was said is kept' if said else ' ' + forgotten}; Ctrl-D leaves)")
    if quiet:
        return
    if reason := model.cut_reason(request, answer, setting="/set max_tokens"):
        while_thinking = is_thinking(answer.text, inside=request.inside)
        note(f"({reason}{_IN_THOUGHT if while_thinking else ''})")
    if answer.times is not None and answer.generation_tokens:
        note(answer_line(answer, answer.times))


_IN_THOUGHT = "; it was still thinking, which /set thinking off leaves out"


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
