"""`jaxinfer chat`: a conversation with a model in the terminal."""

import secrets
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from jaxinfer.cli.flags.engine import add_engine_flags
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

    from jaxinfer import LLM, SamplingParams
    from jaxinfer.cli.answers.answer import Answer
    from jaxinfer.cli.conversation import Conversation

_MAX_TOKENS = 2048


def build_parser() -> CommandParser:
    """The flags of `jaxinfer chat`."""
    parser = CommandParser("chat", "Chat with a model; /help in the chat lists its commands.")
    parser.add_argument("--system", type=text_argument, help="system message (default: none)")
    parser.add_argument("--no-thinking", action="store_true", help="turn thinking off")
    parser.add_argument("-q", "--quiet", action="store_true", help="no statistics, no progress")
    add_sampling_flags(parser, max_tokens=f"{_MAX_TOKENS}, at most half of the context")
    add_url_flags(parser)
    own = {"max_num_seqs": "1", "compile_ahead": "at first use", "seed": "another each time"}
    add_engine_flags(parser, defaults=own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    check_url_flags(parser, arguments)
    run = _run if arguments.url is None else _run_with_server
    return run_command("chat", lambda: run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.answers.answer import tokenizer_of
    from jaxinfer.cli.conversation import Conversation
    from jaxinfer.cli.engine import open_engine, speaking_of_flags
    from jaxinfer.cli.platform import start_platform
    from jaxinfer.cli.texts import prepare_lines

    with speaking_of_flags():
        check_sampling(sampling_arguments(arguments))
    start_platform(process_arguments(arguments))
    # Another conversation every time, unless --seed asks for the same one.
    defaults = {"compile_ahead": False, "max_num_seqs": 1, "seed": secrets.randbits(31)}
    with open_engine(arguments, defaults, quiet=arguments.quiet) as llm:
        if llm.follows:
            llm.follow()
            return OK
        prepare_lines()
        # A missing template is an error now, not after the user has typed a message.
        tokenizer_of(llm).apply_chat_template([{"role": "user", "content": "hello"}])
        conversation = Conversation(
            system=arguments.system,
            sampling={"max_tokens": _default_max_tokens(llm)} | sampling_arguments(arguments),
            thinking=False if arguments.no_thinking else None,
        )
        _converse(conversation, lambda line: _answer(llm, conversation, line, arguments.quiet))
    return OK


def _run_with_server(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.client.chat import answer_from_server
    from jaxinfer.cli.conversation import Conversation
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.texts import prepare_lines

    with speaking_of_flags():
        check_sampling(sampling_arguments(arguments))
    target, model = chosen_server(arguments.url, arguments)
    prepare_lines()
    conversation = Conversation(
        system=arguments.system,
        sampling=seed_argument(arguments) | sampling_arguments(arguments),
        thinking=False if arguments.no_thinking else None,
    )
    if not arguments.quiet:
        print(f"{model} at {target.url}", file=sys.stderr)
    quiet = arguments.quiet

    def answer(line: str) -> None:
        answer_from_server(target, model, conversation, line, quiet=quiet)

    _converse(conversation, answer)
    return OK


def _default_max_tokens(llm: "LLM") -> int:
    """Enough for a long answer, yet at most half of what a short context holds."""
    return min(_MAX_TOKENS, max(1, llm.max_model_len // 2))


def _converse(conversation: "Conversation", answer: Callable[[str], None]) -> None:
    """Read and answer until the user leaves."""
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.terminal import prepare_line_editing, read_message

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
                    answer(line)
        except EOFError:
            return
        except KeyboardInterrupt:  # at the prompt, or a second one while an answer ends
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
        # Not text, a wrong setting, a conversation that has grown too long: nothing has changed.
        except ValueError as error:
            print_error("chat", " ".join(str(error).split()))


def _answer(llm: "LLM", conversation: "Conversation", line: str, quiet: bool) -> None:
    """Answer `line`; Ctrl-C stops the answer and keeps what has been said.

    Raises:
        ValueError: the conversation does not fit the model, or a setting is out of its range.
        KeyboardInterrupt: a second Ctrl-C.
    """
    from jaxinfer.cli.answers.answer import Answer, cut_reason, tokenizer_of
    from jaxinfer.cli.answers.thinking import OPEN, is_thinking
    from jaxinfer.cli.answers.turn import take_turn
    from jaxinfer.cli.terminal import note

    params = llm.get_default_sampling_params().clone(**conversation.sampling)
    prompt = tokenizer_of(llm).apply_chat_template(
        conversation.messages(line), enable_thinking=conversation.thinking
    )
    inside = prompt.rstrip().endswith(OPEN)
    answer = Answer()
    pieces = _pieces(llm, prompt, params, answer)
    said, is_whole = take_turn(conversation, line, answer, pieces, inside=inside)
    if not is_whole:
        note(_stopped(said))
    if quiet:
        return
    reason = cut_reason(answer, params, llm.max_model_len, setting="/set max_tokens")
    if reason is not None:
        while_thinking = is_thinking(answer.text, inside=inside)
        note(f"({reason}{_IN_THOUGHT if while_thinking else ''})")
    if answer.statistics is not None and answer.token_ids:
        note(answer.statistics.line())


_IN_THOUGHT = "; it was still thinking, which /set thinking off leaves out"


def _stopped(said: str) -> str:
    """The note after Ctrl-C."""
    if said:
        return "(stopped; what was said is kept; Ctrl-D leaves)"
    return (
        "(stopped before anything was said, so your message is forgotten; what the engine compiles "
        "or computes just now ends before the next answer begins; Ctrl-D leaves)"
    )


def _pieces(
    llm: "LLM", prompt: str, params: "SamplingParams", answer: "Answer"
) -> Generator[tuple[bool, str]]:
    """Stream an answer, filling in `answer`; tags in the text tell what is thinking."""
    from jaxinfer.cli.answers.answer import stream_answer, tokenizer_of

    token_ids = tokenizer_of(llm).encode(prompt, add_special_tokens=False)
    with closing(stream_answer(llm, {"prompt_token_ids": token_ids}, params, answer)) as pieces:
        for piece in pieces:
            yield False, piece


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
