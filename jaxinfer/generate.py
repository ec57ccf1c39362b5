"""`jaxinfer generate`: text after a prompt on stdout as it is written, statistics on stderr."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.engine_flags import add_engine_flags, engine_arguments
from jaxinfer.cli.parser import CommandParser
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.cli.process_flags import is_first_process, is_one_of_several, process_arguments
from jaxinfer.cli.sampling_flags import add_sampling_flags, sampling_arguments

if TYPE_CHECKING:
    import argparse

    from jaxinfer import LLM, SamplingParams
    from jaxinfer.cli.statistics import BatchStatistics, RunStatistics

_MAX_TOKENS = 256

_EXAMPLES = """examples:
  jaxinfer generate -p "Once upon a time"
  jaxinfer generate --model Qwen/Qwen3-0.6B --chat -p "Why is the sky blue?" --temp 0.6
  cat question.txt | jaxinfer generate -p - --quiet
  jaxinfer generate --prompts-file prompts.txt --json > answers.jsonl"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer generate`."""
    parser = CommandParser("generate", "Write text after a prompt, or after many.", _EXAMPLES)
    parser.add_argument("-p", "--prompt", help='the prompt ("-" reads standard input)')
    parser.add_argument(
        "--prompts-file", help='one prompt a line, or .jsonl with strings or {"prompt": ...}'
    )
    parser.add_argument("--chat", action="store_true", help="send each prompt as a chat message")
    parser.add_argument("--system", help="system message (with --chat)")
    parser.add_argument(
        "--no-thinking", action="store_true", help="ask for no thinking (with --chat)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing but text and errors")
    add_sampling_flags(parser)
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command("generate", lambda: _run(arguments))


def _run(arguments: "argparse.Namespace") -> int:
    from jaxinfer.cli.platform import start_platform
    from jaxinfer.cli.prompts import read_prompts

    prompts: list[str] = []
    if not is_one_of_several(arguments):
        prompts = read_prompts(arguments.prompt, arguments.prompts_file)
    start_platform(process_arguments(arguments))
    # Other processes hear of a mistake only from a process that they have met.
    if is_one_of_several(arguments) and is_first_process():
        prompts = read_prompts(arguments.prompt, arguments.prompts_file)
    with _open_engine(arguments, len(prompts)) as llm:
        if llm.follows:
            llm.follow()
            return OK
        params = _sampling_params(llm, arguments)
        token_ids = [_encode(llm, prompt, arguments) for prompt in prompts]
        if len(prompts) == 1:
            return _one(llm, prompts[0], token_ids[0], params, arguments)
        return _many(llm, prompts, token_ids, params, arguments)


def _open_engine(arguments: "argparse.Namespace", num_prompts: int) -> "LLM":
    """An engine for this run alone: no more rows than prompts, shapes compiled as they come up."""
    from jaxinfer import LLM

    defaults: dict[str, Any] = {"compile_ahead": False, "show_progress": not arguments.quiet}
    if not is_one_of_several(arguments):  # only process 0 knows the prompts
        defaults["max_num_seqs"] = min(num_prompts, 256)
    return LLM(**(defaults | engine_arguments(arguments)))


def _sampling_params(llm: "LLM", arguments: "argparse.Namespace") -> "SamplingParams":
    given = {"max_tokens": _MAX_TOKENS} | sampling_arguments(arguments)
    return llm.get_default_sampling_params().clone(**given)


def _encode(llm: "LLM", prompt: str, arguments: "argparse.Namespace") -> list[int]:
    from jaxinfer.cli.answers import tokenizer_of

    tokenizer = tokenizer_of(llm)
    if not arguments.chat:
        return tokenizer.encode(prompt)
    messages = [{"role": "user", "content": prompt}]
    if arguments.system is not None:
        messages.insert(0, {"role": "system", "content": arguments.system})
    thinking = False if arguments.no_thinking else None
    text = tokenizer.apply_chat_template(messages, enable_thinking=thinking)
    return tokenizer.encode(text, add_special_tokens=False)


def _one(
    llm: "LLM",
    prompt: str,
    token_ids: list[int],
    params: "SamplingParams",
    arguments: "argparse.Namespace",
) -> int:
    """Stream the only answer."""
    from jaxinfer.cli.answers import Answer, stream_answer

    answer = Answer()
    for text in stream_answer(llm, token_ids, params, answer):
        if not arguments.json:
            print(text, end="", flush=True)
    if arguments.json:
        record = _record(prompt, answer.text, answer.token_ids, answer.finish_reason)
        record["statistics"] = answer.statistics and answer.statistics.fields()
        print(json.dumps(record, ensure_ascii=False))
    else:
        print()
    _print_statistics(answer.statistics, arguments)
    return OK


def _many(
    llm: "LLM",
    prompts: list[str],
    token_ids: list[list[int]],
    params: "SamplingParams",
    arguments: "argparse.Namespace",
) -> int:
    """Run all prompts as one batch and print the answers in the order of the prompts."""
    from jaxinfer.cli.statistics import batch_statistics

    compiled = llm.num_compilations
    inputs: Any = [{"prompt_token_ids": ids} for ids in token_ids]
    outputs = llm.generate(inputs, params, use_tqdm=not arguments.quiet)
    status = OK
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0]
        record = _record(prompt, answer.text, list(answer.token_ids), answer.finish_reason)
        if output.error is not None:
            status = FAILED
            record["error"] = output.error
            print(f"jaxinfer generate: error: {prompt!r}: {output.error}", file=sys.stderr)
        if arguments.json:
            print(json.dumps(record, ensure_ascii=False))
        else:
            print(f"=== {prompt}\n{answer.text}\n")
    statistics = batch_statistics(outputs, llm.num_compilations - compiled)
    _print_statistics(statistics, arguments)
    return status


def _record(
    prompt: str, text: str, token_ids: list[int], finish_reason: str | None
) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": text,
        "token_ids": token_ids,
        "finish_reason": finish_reason,
    }


def _print_statistics(
    statistics: "RunStatistics | BatchStatistics | None", arguments: "argparse.Namespace"
) -> None:
    if statistics is not None and not arguments.quiet:
        print(statistics.line(), file=sys.stderr)


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
