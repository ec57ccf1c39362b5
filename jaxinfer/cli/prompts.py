"""Reads the prompts of `generate`: from the command line, standard input or a file."""

import json
import sys
from pathlib import Path


def read_prompts(prompt: str | None, prompts_file: str | None) -> list[str]:
    """The prompts to continue, at least one.

    Args:
        prompt: the text of `-p`; "-" reads all of standard input.
        prompts_file: a file with one prompt a line, or JSON lines if its name ends in .jsonl:
            each a string or an object with "prompt".

    Raises:
        ValueError: no prompt was given, or a line is no prompt; names file and line.
        OSError: the file can't be read.
    """
    if prompts_file is not None:
        prompts = _read_file(Path(prompts_file))
    elif prompt == "-":
        prompts = [sys.stdin.read()]
    else:
        prompts = [prompt] if prompt is not None else []
    if not prompts or prompts == [""]:
        source = prompts_file or ("standard input" if prompt == "-" else None)
        if source:
            raise ValueError(f"{source} holds no prompt")
        raise ValueError("no prompt: give -p TEXT, -p - for standard input, or --prompts-file FILE")
    return prompts


def _read_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_json_prompt(line, f"{path}:{number}") for number, line in numbered]


def _json_prompt(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where}: not JSON") from None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f'{where}: expected a string or {{"prompt": "..."}}')
    return prompt
