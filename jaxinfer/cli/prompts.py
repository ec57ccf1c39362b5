"""Reads the prompts of `generate`: from the command line, standard input or a file."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.checks import did_you_mean
from jaxinfer.cli.flags.sampling import check_sampling
from jaxinfer.cli.texts import checked_text, decode_file, file_errors, read_standard_input
from jaxinfer.sampling_params import SamplingParams

# Fields whose effect shows only in outputs with more than the text of one completion.
_NO_LINE_FIELDS = {"n", "logprobs", "prompt_logprobs", "prompt_logprob_start", "entropy", "support"}
_NO_LINE_FIELDS |= {"logprob_token_ids", "detokenize", "output_kind"}
LINE_SAMPLING_FIELDS = (
    frozenset(field.name for field in dataclasses.fields(SamplingParams)) - _NO_LINE_FIELDS
)
"""Sampling fields that a JSON line may have: all that affect an answer of one completion."""

# Fields that `--json` writes beside the prompt and its id: answers can be read as prompts.
_ANSWER_KEYS = frozenset({"text", "token_ids", "finish_reason", "error", "statistics"})


@dataclasses.dataclass(frozen=True)
class PromptLine:
    """One prompt to continue.

    Attributes:
        where: its name in errors, for example "prompts.jsonl:3".
        id: the user's name for it, repeated in its answer; None without one.
        sampling: `SamplingParams` fields for this prompt alone.
    """

    text: str
    where: str
    id: str | int | None = None
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_prompts(prompt: str | None, prompts_file: str | None) -> list[PromptLine]:
    """The prompts to continue, at least one.

    Args:
        prompt: the text of `-p`; "-" reads all of standard input.
        prompts_file: a file with one prompt a line, or JSON lines if its name ends in .jsonl:
            each a string or an object with "prompt", and perhaps "id" and sampling fields. "-"
            reads lines from standard input, JSON if the first one is an object.

    Raises:
        ValueError: no prompt was given, the file can't be read, or a line is no prompt; names
            file and line.
    """
    if prompts_file is not None:
        lines = _read_lines(prompts_file)
        if not lines:
            raise ValueError(f"{_name(prompts_file)} holds no prompt")
        return lines
    if prompt == "-":
        if text := read_standard_input():
            return [PromptLine(text, "standard input")]
        raise ValueError("standard input holds no prompt")
    if not prompt:
        raise ValueError("no prompt: give -p TEXT, -p - for standard input, or --prompts-file FILE")
    return [PromptLine(prompt, "the prompt")]


def _name(prompts_file: str) -> str:
    return "standard input" if prompts_file == "-" else prompts_file


def _read_lines(prompts_file: str) -> list[PromptLine]:
    name = _name(prompts_file)
    if prompts_file == "-":
        text = read_standard_input()
        is_json = text.lstrip().startswith('{"')
    else:
        with file_errors(name, "a file of prompts, one a line"):
            data = Path(prompts_file).read_bytes()
        text = decode_file(data, name)
        is_json = prompts_file.endswith(".jsonl")
    read = _json_prompt if is_json else PromptLine
    # Not splitlines(), which also splits at characters that a prompt may hold.
    numbered = enumerate((line.removesuffix("\r") for line in text.split("\n")), 1)
    return [read(line, f"{name}:{number}") for number, line in numbered if line.strip(" \t")]


def _json_prompt(line: str, where: str) -> PromptLine:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: not JSON") from None
    fields = {"prompt": value} if isinstance(value, str) else value
    text = fields.get("prompt") if isinstance(fields, dict) else None
    if not isinstance(text, str) or not text:
        raise ValueError(f'{where}: expected a string or {{"prompt": "..."}}')
    for key in fields:
        if key not in {"prompt", "id"} | LINE_SAMPLING_FIELDS | _ANSWER_KEYS:
            known = ["prompt", "id", *sorted(LINE_SAMPLING_FIELDS)]
            near = did_you_mean(key, known) or f"; a line may hold {', '.join(known)}"
            raise ValueError(f"{where}: unknown key {key!r:.80}{near}")
    name = fields.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int | None):
        raise ValueError(f"{where}: id must be a string or an integer")
    sampling = {key: fields[key] for key in fields if key in LINE_SAMPLING_FIELDS}
    try:
        check_sampling(sampling)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return PromptLine(checked_text(text, where), where, name, sampling)
