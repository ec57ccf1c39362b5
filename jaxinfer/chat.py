"""`jaxinfer chat`: a conversation with a model in the terminal."""

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from jaxinfer.cli.engine_flags import add_engine_flags, engine_arguments
from jaxinfer.cli.parser import CommandParser
from jaxinfer.cli.process import OK, end_process, print_error, run_command
from jaxinfer.cli.process_flags import process_arguments
from jaxinfer.cli.sampling_flags import add_sampling_flags, sampling_arguments

if TYPE_CHECKING:
    import argparse

    from jaxinfer import LLM, SamplingParams
    from jaxinfer.cli.answers import Answer
    from jaxinfer.cli.conversation import Conversation

_MAX_TOKENS = 2048


def build_parser() -> CommandParser:
    """The flags of `jaxinfer chat`."""
    parser = CommandParser("chat", "Talk with a model; /help inside lists what can be typed.")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--no-thinking", action="store_true", help="ask for no thinking")
    parser.add_argument("-q", "--quiet", action="store_true", help="no statistics, no progress")
    add_sampling_flags(parser, max_tokens=_MAX_TOKENS)
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("chat", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.answers import tokenizer_of
    from jaxinfer.cli.conversation import Conversation
    from jaxinfer.cli.platform import start_platform
    from jaxinfer.cli.terminal import prepare_line_editing

    start_platform(process_arguments(arguments))
    from jaxinfer import LLM

    defaults = {"compile_ahead": False, "max_num_seqs": 1, "show_progress": not arguments.quiet}
    with LLM(**(defaults | engine_arguments(arguments))) as llm:
        if llm.follows:
            llm.follow()
            return OK
        # The first answer would find a missing template too, but after the user has typed.
        tokenizer_of(llm).apply_chat_template([{"role": "user", "content": "hello"}])
        conversation = Conversation(
            system=arguments.system,
            sampling={"max_tokens": _default_max_tokens(llm)} | sampling_arguments(arguments),
            thinking=False if arguments.no_thinking else None,
        )
        prepare_line_editing()
        if sys.stdin.isatty():
            print("/help lists commands, Ctrl-D leaves", file=sys.stderr)
        _converse(llm, conversation, quiet=arguments.quiet)
    return OK


def _default_max_tokens(llm: "LLM") -> int:
    """Enough for a long answer, yet at most half of what a short context holds."""
    return min(_MAX_TOKENS, max(1, llm.max_model_len // 2))


def _converse(llm: "LLM", conversation: "Conversation", *, quiet: bool) -> None:
    """Read and answer until the user leaves."""
    from jaxinfer.cli.terminal import read_message

    while True:
        try:
            line = read_message()
        except EOFError:
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)", file=sys.stderr)
            continue
        if not line.strip():
            continue
        try:
            if line.startswith("/"):
                reply = conversation.run_slash_command(line)
                if reply is None:
                    return
                print(reply, file=sys.stderr)
            else:
                _answer(llm, conversation, line, quiet=quiet)
        except ValueError as error:  # a wrong setting, or a conversation that has grown too long
            print_error("chat", " ".join(str(error).split()))


def _answer(llm: "LLM", conversation: "Conversation", line: str, *, quiet: bool) -> None:
    """Answer `line`; Ctrl-C stops the answer and keeps what has been said.

    Raises:
        ValueError: the conversation does not fit the model, or a setting is out of its range; the
            message is taken back.
    """
    from jaxinfer.cli.answers import Answer, tokenizer_of
    from jaxinfer.cli.terminal import note

    conversation.ask(line)
    answer = Answer()
    try:
        params = llm.get_default_sampling_params().clone(**conversation.sampling)
        prompt = tokenizer_of(llm).apply_chat_template(
            conversation.messages(), enable_thinking=conversation.thinking
        )
        conversation.answer(_speak(llm, prompt, params, answer))
    except ValueError:
        conversation.take_back()
        raise
    if answer.statistics is not None and not quiet:
        note(answer.statistics.line())


def _speak(llm: "LLM", prompt: str, params: "SamplingParams", answer: "Answer") -> str:
    """Stream an answer to the terminal, thinking dimmed; returns what was said aloud.

    Ctrl-C reaches us between two steps, never inside one: the engine sees to that.
    """
    from jaxinfer.cli.answers import stream_answer, tokenizer_of
    from jaxinfer.cli.terminal import show
    from jaxinfer.cli.thinking import OPEN, ThinkingSplitter

    said = ""
    splitter = ThinkingSplitter(inside=prompt.rstrip().endswith(OPEN))
    token_ids = tokenizer_of(llm).encode(prompt, add_special_tokens=False)
    try:
        with closing(stream_answer(llm, token_ids, params, answer)) as pieces:
            for piece in pieces:
                for thinking, text in splitter.feed(piece):
                    show(text, dim=thinking)
                    said += "" if thinking else text
    except KeyboardInterrupt:
        pass
    for thinking, text in splitter.finish():
        show(text, dim=thinking)
        said += "" if thinking else text
    print(flush=True)
    return said.strip()


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
