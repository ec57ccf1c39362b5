"""`jaxinfer generate --url`: the prompts are answered by a running OpenAI server."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TextIO

from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.json_lines import json_line
from jaxinfer.cli.client.answers import stream_from_server
from jaxinfer.cli.client.server import Target
from jaxinfer.cli.flags.sampling import sampling_arguments
from jaxinfer.cli.flags.server import chosen_server, seed_argument
from jaxinfer.cli.process import FAILED, OK, print_error
from jaxinfer.cli.prompts import PromptLine
from jaxinfer.cli.terminal import show

_MOST_AT_ONCE = 64

Ask = Callable[[PromptLine], tuple[str, dict[str, Any]]]
"""From a prompt to the path and the body of its request."""


def generate_from_server(
    lines: Sequence[PromptLine], out: TextIO, arguments: argparse.Namespace, max_tokens: int
) -> int:
    """Answer prompts in order, up to 64 at a time; the exit status.

    Args:
        lines: at least one prompt.
        out: where JSON lines go.
        arguments: of `jaxinfer generate`.
        max_tokens: the command's default.

    Raises:
        ValueError: the server refuses, or the only prompt fails.
        OSError: the server can't be reached.
    """
    target, model = chosen_server(arguments.url, arguments)
    fixed = {"max_tokens": max_tokens, **seed_argument(arguments), **sampling_arguments(arguments)}

    def ask(line: PromptLine) -> tuple[str, dict[str, Any]]:
        return _request(line, {"model": model, **fixed, **line.sampling}, arguments)

    as_json = arguments.json or arguments.output is not None
    if arguments.prompts_file is not None:
        return _many(target, ask, lines, out if as_json else None)
    answer = Answer()
    for thinking, text in stream_from_server(target, *ask(lines[0]), answer):
        if not as_json:
            show(text, dim=thinking)
    if as_json:
        _write_json(answer, lines[0], out)
    else:
        print(flush=True)
    if not arguments.quiet and answer.statistics is not None:
        print(answer.statistics.line(), file=sys.stderr)
    return OK


def _request(
    line: PromptLine, fields: dict[str, Any], arguments: argparse.Namespace
) -> tuple[str, dict[str, Any]]:
    if not arguments.chat:
        return "/v1/completions", {**fields, "prompt": line.text}
    messages = [{"role": "user", "content": line.text}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    if arguments.no_thinking:
        fields["chat_template_kwargs"] = {"enable_thinking": False}
    return "/v1/chat/completions", {**fields, "messages": messages}


def _many(target: Target, ask: Ask, lines: Sequence[PromptLine], out: TextIO | None) -> int:
    status = OK
    for line, answer in zip(lines, _answers(target, ask, lines), strict=True):
        if answer.error is not None:
            status = FAILED
            print_error("generate", f"{line.where}: {answer.error}")
        if out is not None:
            _write_json(answer, line, out)
        else:
            show(f"=== {line.text}\n{answer.text}\n\n")
    return status


def _answers(target: Target, ask: Ask, lines: Sequence[PromptLine]) -> Iterator[Answer]:
    """The answer to each prompt, in order; one that failed says why."""

    def answer_to(line: PromptLine) -> Answer:
        answer = Answer()
        try:
            for _ in stream_from_server(target, *ask(line), answer):
                pass
        except ValueError as error:
            answer.finish_reason, answer.error = "error", str(error)
        return answer

    pool = ThreadPoolExecutor(_MOST_AT_ONCE)
    try:
        futures: list[Future[Answer]] = [pool.submit(answer_to, line) for line in lines]
        for future in futures:
            yield future.result()
    finally:  # Ctrl-C waits for no answer
        pool.shutdown(wait=False, cancel_futures=True)


def _write_json(answer: Answer, line: PromptLine, out: TextIO) -> None:
    record = answer.record(line)
    del record["token_ids"]  # a server sends text
    if (statistics := answer.statistics) is not None:
        record["statistics"] |= {
            "generation_tokens": statistics.generation_tokens,
            "first_token_s": statistics.first_token_s,
            "total_s": statistics.total_s,
        }
    print(json_line(record, out.encoding or "utf-8"), file=out, flush=True)
