"""`jaxinfer generate`: text after a prompt on stdout as it is written, statistics on stderr."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jaxinfer.cli.flags.adapter import adapter_directory, adapter_settings, add_lora_flag
from jaxinfer.cli.flags.engine import ADAPTER_FIELDS, add_engine_flags
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.process import is_first_process, is_one_of_several, process_arguments
from jaxinfer.cli.flags.sampling import add_sampling_flags, check_sampling, sampling_arguments
from jaxinfer.cli.flags.server import (
    add_url_flags,
    check_url_flags,
    chosen_server,
    seed_argument,
)
from jaxinfer.cli.process import FAILED, OK, end_process, print_error, run_command
from jaxinfer.cli.texts import text_argument

if TYPE_CHECKING:
    import argparse

    from jaxinfer.cli.answers.answer import Answer
    from jaxinfer.cli.answers.local_model import LocalModel
    from jaxinfer.cli.client.served_model import ServedModel
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
    parser.add_argument(
        "positional_prompt", nargs="?", metavar="PROMPT", type=text_argument, help="same as -p"
    )
    parser.add_argument(
        "-p", "--prompt", type=text_argument, help='the prompt ("-" reads standard input)'
    )
    parser.add_argument(
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
    add_lora_flag(parser)
    add_url_flags(parser)
    own = {"max_num_seqs": "the number of prompts, at most 256", "compile_ahead": "at first use"}
    add_engine_flags(parser, defaults=own, without=ADAPTER_FIELDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    _check_sources(parser, arguments)
    if arguments.positional_prompt is not None:
        arguments.prompt = arguments.positional_prompt
    if not arguments.chat and (arguments.system is not None or arguments.no_thinking):
        flag = "--no-thinking" if arguments.system is None else "--system"
        parser.error(f"{flag} needs --chat")
    if arguments.resume and arguments.output is None:
        parser.error("--resume needs --output, the file to go on with")
    check_url_flags(parser, arguments)
    return run_command("generate", lambda: _run(arguments))


def _check_sources(parser: CommandParser, arguments: "argparse.Namespace") -> None:
    """Refuse several sources of prompts.

    argparse would do so before it names an unknown flag, whose value it takes as PROMPT.
    """
    sources = {
        "PROMPT": arguments.positional_prompt,
        "-p": arguments.prompt,
        "--prompts-file": arguments.prompts_file,
    }
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        parser.error(f"{' and '.join(given)} exclude each other; give one")


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.answers.local_model import LocalModel
    from jaxinfer.cli.client.served_model import ServedModel
    from jaxinfer.cli.engine import open_engine, speaking_of_flags
    from jaxinfer.cli.platform import start_platform

    with speaking_of_flags():
        check_sampling(sampling_arguments(arguments))
    defaults: dict[str, Any] = {"compile_ahead": False}  # an engine for this run alone
    with contextlib.ExitStack() as stack:
        lines: list[PromptLine] = []
        out = sys.stdout
        if arguments.url is not None:
            lines, out = _read(arguments, stack)
            if not lines:
                return OK
            served = ServedModel(*chosen_server(arguments.url, arguments))
            return _answer(served, lines, out, arguments, seed_argument(arguments))
        if not is_one_of_several(arguments):
            lines, out = _read(arguments, stack)
            if not lines:
                return OK
            defaults["max_num_seqs"] = min(len(lines), 256)
        start_platform(process_arguments(arguments))
        # Other processes learn of an error only from a process that they are connected to.
        if is_one_of_several(arguments) and is_first_process():
            lines, out = _read(arguments, stack)
        adapter = adapter_directory(arguments)
        defaults |= adapter_settings(adapter)
        llm = stack.enter_context(open_engine(arguments, defaults, quiet=arguments.quiet))
        if llm.follows:
            llm.follow()
            return OK
        return _answer(LocalModel(llm, adapter), lines, out, arguments, {}) if lines else OK


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


def _answer(
    model: "LocalModel | ServedModel",
    lines: "list[PromptLine]",
    out: TextIO,
    arguments: "argparse.Namespace",
    sampling: Mapping[str, Any],
) -> int:
    """Answer all prompts, with these fields of sampling beside those of flags and lines."""
    fields = {"max_tokens": _MAX_TOKENS, **sampling, **sampling_arguments(arguments)}
    requests = [_request(model, line, fields, arguments) for line in lines]
    as_json = arguments.json or arguments.output is not None
    if arguments.prompts_file is None:
        return _one(model, lines[0], requests[0], out if as_json else None, arguments)
    return _many(model, lines, requests, out if as_json else None, arguments)


def _request(
    model: Any, line: "PromptLine", fields: Mapping[str, Any], arguments: "argparse.Namespace"
) -> Any:
    """The request of a prompt: the text, or a chat."""
    from jaxinfer.cli.flags.names import in_flags

    prompt: Any = line.text
    if arguments.chat:
        system = [] if arguments.system is None else [("system", arguments.system)]
        turns = [*system, ("user", line.text)]
        prompt = [{"role": role, "content": content} for role, content in turns]
    thinking = False if arguments.no_thinking else None
    try:
        return model.request(prompt, {**fields, **line.sampling}, thinking)
    except (TypeError, ValueError) as error:
        where = f"{line.where}: {error}" if line.sampling else in_flags(str(error))
        raise ValueError(where) from None


def _one(
    model: Any,
    line: "PromptLine",
    request: Any,
    out: TextIO | None,
    arguments: "argparse.Namespace",
) -> int:
    """Stream the only answer; JSON goes to `out`."""
    from jaxinfer.cli.answers.answer import Answer
    from jaxinfer.cli.answers.statistics import answer_line
    from jaxinfer.cli.engine import speaking_of_flags
    from jaxinfer.cli.terminal import note, show

    answer = Answer()
    with speaking_of_flags():
        for thinking, text in model.stream(request, answer):
            if out is None:
                show(text, dim=thinking)
    if out is not None:
        _write_json(answer, line, out)
    else:
        print(flush=True)
    if not arguments.quiet:
        if reason := model.cut_reason(request, answer, setting="--max-tokens"):
            note(f"({reason})")
        if answer.times is not None:
            print(answer_line(answer, answer.times), file=sys.stderr)
    return OK


def _many(
    model: Any,
    lines: "list[PromptLine]",
    requests: list[Any],
    out: TextIO | None,
    arguments: "argparse.Namespace",
) -> int:
    """Write each answer when it and all before it are done; JSON goes to `out`."""
    from jaxinfer.cli.answers.statistics import batch_line
    from jaxinfer.cli.terminal import show
    from jaxinfer.progress import ProgressBar

    watch, answers, status = model.watch(), [], OK
    enabled = not arguments.quiet and not (out or sys.stdout).isatty()
    with ProgressBar(len(lines), "Answered prompts", enabled=enabled) as bar:
        for line, answer in zip(lines, model.answer_all(lines, requests), strict=True):
            answers.append(answer)
            if answer.error is not None:
                status = FAILED
                print_error("generate", f"{line.where}: {answer.error}")
            if out is not None:
                _write_json(answer, line, out)
            else:
                show(f"=== {line.text}\n{answer.text}\n\n")
            bar.update()
    if watch is not None and not arguments.quiet:
        print(batch_line(answers, watch.times()), file=sys.stderr)
    return status


def _write_json(answer: "Answer", line: "PromptLine", out: TextIO) -> None:
    from jaxinfer.cli.answers.json_lines import json_line

    print(json_line(answer.record(line), out.encoding or "utf-8"), file=out, flush=True)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
