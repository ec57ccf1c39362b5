"""The page for people who come from vLLM says what is so."""

import dataclasses
import inspect
import re
from pathlib import Path

import jaxinfer
from jaxinfer import LLM, SamplingParams, Tokenizer
from jaxinfer.config import EngineConfig

PAGE = (Path(__file__).parent.parent / "docs" / "from-vllm.md").read_text(encoding="utf-8")


def _columns():
    """Cells of the tables' two columns."""
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    return [row[0] for row in rows], [row[1] for row in rows]


def test_methods_and_arguments_that_the_page_says_to_write_exist():
    _, ours = _columns()
    engine = {field.name for field in dataclasses.fields(EngineConfig)}
    known = engine | {field.name for field in dataclasses.fields(SamplingParams)}
    for method in (LLM.__init__, LLM.generate, LLM.chat, LLM.embed):
        known |= set(inspect.signature(method).parameters)
    text = " ".join(ours)
    names = set(re.findall(r"\b([a-z_]+)=", text)) - {"key"}
    assert len(names) > 10
    assert names <= known
    for method in re.findall(r"`?(?:llm|LLM\(\.\.\.\))\.([a-z_]+)", text):
        assert hasattr(LLM, method), method


def test_names_that_the_page_imports_or_gives_the_tokenizer_exist():
    (line,) = re.findall(r"^from jaxinfer import (.*)$", PAGE, re.MULTILINE)
    assert all(hasattr(jaxinfer, name) for name in line.split(", "))
    tokenizer = PAGE[PAGE.index("## The tokenizer") :].split("It is no")[0]
    names = set(re.findall(r"`([a-z_]+)`", tokenizer)) - {"len"}
    assert len(names) == 6
    assert all(hasattr(Tokenizer, name) for name in names)


def test_what_the_page_calls_unsupported_is():
    unsupported = [line for line in PAGE.splitlines() if "| not supported" in line]
    names = set(re.findall(r"`(?:llm\.)?([a-z_]+)`", " ".join(unsupported)))
    assert {"limit_mm_per_prompt", "encode"} <= names
    assert not any(name in EngineConfig.__dataclass_fields__ for name in names)
    assert not any(hasattr(LLM, name) for name in names)
