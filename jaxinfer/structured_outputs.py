"""Structured outputs: the grammar that an answer must follow, a field of `SamplingParams`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, no_type_check

from jaxinfer.checks import check_flag, check_strings, show

GrammarKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]

ThinkingStage = Literal["possible", "open", "over"]
"""Where a prompt or an answer is: thinking may be opened by the answer, is open, or was closed."""

MAX_GRAMMAR_BYTES = 1 << 18
"""Longest grammar of a request, as text."""

MAX_CHOICES = 4096


@no_type_check  # its fields check themselves, by name; run-time checkers would come first
@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """One grammar that every token of an answer follows; vLLM's name and fields.

    Exactly one kind of grammar is given. The answer ends where the grammar ends, or when its length
    is used up: `finish_reason` is then "length", and what there is of it is the beginning of a
    valid answer.

    Attributes:
        json: a JSON schema, as a dictionary or its text; stored as text. Keys and values are
            separated by ": " and items by ", ", as `json.dumps` has it, with no other white space.
            A keyword that can't be enforced is refused when the request is made, not ignored.
        json_object: True for any JSON object.
        regex: a regular expression in the syntax of Rust's `regex` crate, which the whole answer
            matches; no look-around, no back-references.
        choice: strings, of which the answer is one.
        grammar: a context-free grammar in Lark's syntax, or in GBNF (rules written ``::=``).
        structural_tag: vLLM's format, as a dictionary or its text; stored as text. The answer is
            free until one of "triggers"; then it is one of "structures", each with "begin", a
            JSON "schema" and "end".
        after_thinking: the grammar begins after the `</think>` of a model that thinks first, and
            its thinking is free. Where the prompt has closed the thinking, it begins at once; where
            the prompt says nothing of it, the answer's first token is `<think>` or one of the
            grammar's. An end-of-sequence token within the thinking ends the answer.
        alternative: a second grammar, in Lark's syntax: the answer follows this one or the other.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: none or several are given, or one is empty, too long or malformed.
    """

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    after_thinking: bool = False
    alternative: str | None = None

    def __post_init__(self) -> None:
        check_flag("structured_outputs.after_thinking", self.after_thinking)
        given: list[GrammarKind] = [n for n in _KINDS if getattr(self, n) is not None]
        if self.json_object is not None:
            check_flag("structured_outputs.json_object", self.json_object)
        if self.json_object is False:
            given.remove("json_object")
            object.__setattr__(self, "json_object", None)
        if len(given) != 1:
            what = f"got {' and '.join(given)}" if given else "got none"
            raise ValueError(f"structured_outputs takes one of {', '.join(_KINDS)}; {what}")
        value = getattr(self, given[0])
        object.__setattr__(self, given[0], _checked(given[0], value))
        if self.alternative is not None:
            _checked("alternative", self.alternative)

    @property
    def kind(self) -> GrammarKind:
        """The field that is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def value(self) -> Any:
        """The value of the given field: True, text, or a tuple of strings."""
        return getattr(self, self.kind)

    def to_json(self) -> dict[str, Any]:
        """Plain values from which the same can be made."""
        value = self.value
        more: dict[str, Any] = {"after_thinking": True} if self.after_thinking else {}
        more |= {} if self.alternative is None else {"alternative": self.alternative}
        return {self.kind: list(value) if isinstance(value, tuple) else value, **more}


_KINDS: tuple[GrammarKind, ...] = get_args(GrammarKind)


def check_structured_outputs(value: Any) -> StructuredOutputsParams:
    """The value as `StructuredOutputsParams`, which may be given as a dictionary of its fields.

    Raises:
        TypeError: it is neither, or a field is unknown or has the wrong type.
        ValueError: as `StructuredOutputsParams`.
    """
    if isinstance(value, StructuredOutputsParams):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"structured_outputs must be a StructuredOutputsParams, got {show(value)}")
    for name in value:
        if name not in StructuredOutputsParams.__dataclass_fields__:
            raise TypeError(
                f"structured_outputs has no field {show(name)}; it takes one of "
                f"{', '.join(_KINDS)}, and after_thinking, alternative"
            )
    return StructuredOutputsParams(**value)


def _checked(kind: str, value: Any) -> Any:
    name = f"structured_outputs.{kind}"
    if kind == "json_object":
        return value
    if kind == "choice":
        choices = check_strings(name, value, MAX_CHOICES, MAX_GRAMMAR_BYTES)
        if not choices:
            raise ValueError(f"{name} must not be empty")
        _check_size(name, "".join(choices))
        return choices
    if kind in ("json", "structural_tag"):
        return _json_text(name, value)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {show(value)}")
    if not value.strip():
        raise ValueError(f"{name} must not be empty")
    _check_size(name, value)
    return value


def _json_text(name: str, value: Any) -> str:
    """The text of a JSON object, given as such or as its text."""
    if isinstance(value, str):
        _check_size(name, value)
    elif not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dictionary or its text, got {show(value)}")
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(parsed, allow_nan=False)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(parsed, Mapping):
        raise ValueError(f"{name} must be a JSON object, got {show(parsed)}")
    _check_size(name, text)
    return text


def _check_size(name: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not valid Unicode text: {error.reason}") from None
    if size > MAX_GRAMMAR_BYTES:
        raise ValueError(f"{name} has {size} bytes; a grammar may have {MAX_GRAMMAR_BYTES}")
