"""`jaxinfer generate`: text after a prompt on stdout as it is written, statistics on stderr."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jaxinfer.cli.flags.engine import add_engine_flags
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.process import is_first_process, is_one_of_several, process_arguments
from jaxinfer.cli.flags.sampling import add_sampling_flags, check_sampling, sampling_arguments
from jaxinfer.cli.flags.server import add_url_flags, check_url_flags
from jaxinfer.cli.process import FAILED, OK, end_process, print_error, run_command
from jaxinfer.cli.texts import text_argument

if TYPE_CHECKING:
    import argparse

    from jaxinfer import LLM, SamplingParams
    from jaxinfer.cli.answers.answer import Answer
    from jaxinfer.cli.answers.statistics import BatchStatistics, RunStatistics
    from jaxinfer.cli.prompts import PromptLine

_MAX_TOKENS = 256

_EXAMPLES = """examples:
  jaxinfer generate "Once upon a time"
  jaxinfer generate --model Qwen/Qwen3-0.6B --chat -p "Why is the sky blue?" --temp 0.6
  cat question.txt | jaxinfer generate -p - --quiet
  jaxinfer generate --prompts-file prompts.txt --output answers.jsonl
  jaxinfer generate --prompts-file prompts.txt --output answers.jsonl --resume
  jaxinfer generate --url http://localhost:8000 "Once upon a time\""""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer generate`."""
    parser = CommandParser("generate", "Generate text from a prompt, or from many.", _EXAMPLES)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "positional_prompt", nargs="?", metavar="PROMPT", type=text_argument, help="same as -p"
    )
    source.add_argument(
        "-p", "--prompt", type=text_argument, help='the prompt ("-" reads standard input)'
    )
    source.add_argument(
        "--prompts-file",
        help='one prompt a line, or .jsonl with strings or {"prompt": ...}, which may hold an "id" '
        'and sampling fields of its own ("-" reads standard input)',
    )
    parser.add_argument("--chat", action="store_true", help="send each prompt as a chat message")
    parser.add_argument(
        "--system", type=text_argument, help="system message, with --chat (default: none)"
    )
    parser.add_argument(
        "--no-thinking", action="store_true", help="turn thinking off (with --chat)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the JSON objects to a new file (default: standard output)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue after the answers in --output's file"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print only text and errors")
    add_sampling_flags(parser, max_tokens=_MAX_TOKENS)
    add_url_flags(parser)
    own = {"max_num_seqs": "the number of prompts, at most 256", "compile_ahead": "at first use"}
    add_engine_flags(parser, defaults=own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.positional_prompt is not None:
        arguments.prompt = arguments.positional_prompt
    if not arguments.chat and (arguments.system is not None or arguments.no_thinking):
        flag = "--no-thinking" if arguments.system is None else "--system"
        parser.error(f"{flag} needs --chat")
    if arguments.resume and arguments.output is None:
        parser.error("--resume needs --output, the file to go on with")
    check_url_flags(parser, arguments)
    return run_command("generate", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.engine import open_engine, speaking_of_flags
    from jaxinfer.cli.platform import start_platform

    with speaking_of_flags():
        check_sampling(sampling_arguments(arguments))
    defaults: dict[str, Any] = {"compile_ahead": False}  # an engine for this run alone
    with contextlib.ExitStack() as stack:
        lines: list[PromptLine] = []
        out = sys.stdout
        if arguments.url is not None:
            from jaxinfer.cli.client.generate import generate_from_server

            lines, out = _read(arguments, stack)
            return generate_from_server(lines, out, arguments, _MAX_TOKENS) if lines else OK
        if not is_one_of_several(arguments):
            lines, out = _read(arguments, stack)
            if not lines:
                return OK
            defaults["max_num_seqs"] = min(len(lines), 256)
        start_platform(process_arguments(arguments))
        # Other processes learn of an error only from a process that they are connected to.
        if is_one_of_several(arguments) and is_first_process():
            lines, out = _read(arguments, stack)
        llm = stack.enter_context(open_engine(arguments, defaults, quiet=arguments.quiet))
        if llm.follows:
            llm.follow()
            return OK
        if not lines:
            return OK
        if arguments.prompts_file is None:
            return _one(llm, lines[0], out, arguments)
        return _many(llm, lines, out, arguments)


def _read(
    arguments: "argparse.Namespace", stack: contextlib.ExitStack
) -> "tuple[list[PromptLine], TextIO]":
    """The prompts without an answer yet, and the file of the answers."""
    from jaxinfer.cli.prompts import read_prompts

    lines = read_prompts(arguments.prompt, arguments.prompts_file)
    if arguments.output is None:
        return lines, sys.stdout
    from jaxinfer.cli.answers.answer_file import open_answers

    file, num_done = open_answers(Path(arguments.output), lines, resume=arguments.resume)
    stack.enter_context(file)
    if num_done and not arguments.quiet:
        print(f"{num_done} of {len(lines)} prompts are answered already", file=sys.stderr)
    return lines[num_done:], file


def _sampling_params(
    llm: "LLM", line: "PromptLine", arguments: "argparse.Namespace"
) -> "SamplingParams":
    """The model's defaults, then the flags, then the line's own fields."""
    from jaxinfer.cli.engine import speaking_of_flags

    given = {"max_tokens": _MAX_TOKENS} | sampling_arguments(arguments)
    with speaking_of_flags():
        params = llm.get_default_sampling_params().clone(**given)
    try:
        return params.clone(**line.sampling)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{line.where}: {error}") from None


def _prompt(llm: "LLM", line: "PromptLine", arguments: "argparse.Namespace") -> dict[str, Any]:
    """The engine's prompt: the text, or the ids of a chat, whose template has its own BOS."""
    if not arguments.chat:
        return {"prompt": line.text}
    from jaxinfer.cli.answers.answer import tokenizer_of

    messages = [{"role": "user", "content": line.text}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    thinking = False if arguments.no_thinking else None
    tokenizer = tokenizer_of(llm)
    text = tokenizer.apply_chat_template(messages, enable_thinking=thinking)
    return {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}


def _one(llm: "LLM", line: "PromptLine", out: TextIO, arguments: "argparse.Namespace") -> int:
    """Stream the only answer."""
    from jaxinfer.cli.answers.answer import Answer, cut_reason, stream_answer
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.terminal import note, show

    as_json = arguments.json or arguments.output is not None
    answer, params = Answer(), _sampling_params(llm, line, arguments)
    prompt = _prompt(llm, line, arguments)
    with speaking_of_flags():
        for text in stream_answer(llm, prompt, params, answer):
            if not as_json:
                show(text)
    if as_json:
        _write_json(answer, line, out)
    else:
        print(flush=True)
    if not arguments.quiet:
        if reason := cut_reason(answer, params, llm.max_model_len, setting="--max-tokens"):
            note(f"({reason})")
        _print_statistics(answer.statistics)
    return OK


def _many(
    llm: "LLM", lines: "list[PromptLine]", out: TextIO, arguments: "argparse.Namespace"
) -> int:
    """Run all prompts as one batch; each answer is written when it and all before it are done."""
    from jaxinfer.cli.answers.batch import answer_all, batch_statistics
    from jaxinfer.cli.answers.statistics import Stopwatch
    from jaxinfer.cli.terminal import show

    as_json = arguments.json or arguments.output is not None
    watch, answers, status = Stopwatch(llm), [], OK
    params = [_sampling_params(llm, line, arguments) for line in lines]
    prompts = [_prompt(llm, line, arguments) for line in lines]
    answered = answer_all(llm, lines, prompts, params)
    for line, answer in zip(lines, _counted(answered, len(lines), out, arguments), strict=True):
        answers.append(answer)
        if answer.error is not None:
            status = FAILED
            print_error("generate", f"{line.where}: {answer.error}")
        if as_json:
            _write_json(answer, line, out)
        else:
            show(f"=== {line.text}\n{answer.text}\n\n")
    if not arguments.quiet:
        _print_statistics(batch_statistics(answers, watch))
    return status


def _counted(
    answers: "Iterator[Answer]", total: int, out: TextIO, arguments: "argparse.Namespace"
) -> "Iterator[Answer]":
    """The same answers, counted by a progress bar unless they are written to the terminal."""
    from jaxinfer.progress import ProgressBar

    enabled = not arguments.quiet and not out.isatty()
    with ProgressBar(total, "Answered prompts", enabled=enabled) as bar:
        for answer in answers:
            yield answer
            bar.update()


def _write_json(answer: "Answer", line: "PromptLine", out: TextIO) -> None:
    from jaxinfer.cli.answers.json_lines import json_line

    print(json_line(answer.record(line), out.encoding or "utf-8"), file=out, flush=True)


def _print_statistics(statistics: "RunStatistics | BatchStatistics | None") -> None:
    if statistics is not None:
        print(statistics.line(), file=sys.stderr)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
