"""Checks of single values from callers; an error names the field and its range."""

import difflib
import functools
import importlib.resources
import math
import numbers
import tomllib
from collections.abc import Iterable, Mapping

MAX_INT32 = 2**31 - 1


@functools.cache
def instead_of_vllm(kind: str) -> Mapping[str, str]:
    """What to write in place of vLLM's names, by `kind`, a table of `assets/vllm_names.toml`."""
    file = importlib.resources.files("jaxinfer") / "assets" / "vllm_names.toml"
    table = tomllib.loads(file.read_text("utf-8"))[kind]
    return {name: text for text, names in table.items() for name in names.split()}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest one that is known, or nothing."""
    near = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


def show(value: object) -> str:
    """Return a value as text of bounded length, for messages."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def check_flag(name: str, value: object) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {show(value)}")


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """Return an integer from `low` to `high`; booleans are not integers."""
    # What is nearly always there is asked first; abstract classes are slow to ask.
    if type(value) is not int and (
        isinstance(value, bool) or not isinstance(value, numbers.Integral)
    ):
        raise TypeError(f"{name} must be an integer, got {show(value)}")
    if not low <= int(value) <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {show(value)}")
    return int(value)


def check_real(name: str, value: object, low: float, high: float) -> float:
    """Return a finite number from `low` to `high`; booleans are not numbers."""
    number = _number(name, value)
    if not low <= number <= high:  # False for NaN too
        raise ValueError(f"{name} must be from {low:g} to {high:g}, got {show(value)}")
    return number


def check_above(name: str, value: object, low: float, high: float) -> float:
    """Return a finite number above `low`, at most `high`; booleans are not numbers."""
    number = _number(name, value)
    if not low < number <= high:
        raise ValueError(f"{name} must be above {low:g} and at most {high:g}, got {show(value)}")
    return number


def _number(name: str, value: object) -> float:
    if type(value) is not float and (
        isinstance(value, bool) or not isinstance(value, numbers.Real)
    ):
        raise TypeError(f"{name} must be a number, got {show(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_strings(name: str, values: object, most: int, longest: int) -> tuple[str, ...]:
    """Return at most `most` strings of 1 to `longest` characters; None is none."""
    if values is None:
        return ()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of strings, got {show(values)}")
    strings = tuple(values)
    for value in strings:
        if not isinstance(value, str):
            raise TypeError(f"{name} must hold strings, got {show(value)}")
        if not 1 <= len(value) <= longest:
            raise ValueError(
                f"{name} strings must have 1 to {longest} characters, got {show(value)}"
            )
    if len(strings) > most:
        raise ValueError(f"{name} must have at most {most} entries, got {len(strings)}")
    return strings


def check_token_ids(name: str, values: object) -> tuple[int, ...]:
    """Return token ids that fit int32; the vocabulary is checked elsewhere."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of token ids, got {show(values)}")
    return tuple(check_integer(f"{name} entry", value, 0, MAX_INT32) for value in values)


def check_bias(values: object, most: int, largest: float) -> dict[int, float]:
    """Return at most `most` biases, each from -largest to largest; keys may be decimal strings."""
    if not isinstance(values, Mapping):
        raise TypeError(f"logit_bias must map token ids to numbers, got {show(values)}")
    if len(values) > most:
        raise ValueError(f"logit_bias must have at most {most} entries")
    bias: dict[int, float] = {}
    for key, value in values.items():
        if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
            key = int(key)
        token = check_integer("logit_bias key", key, 0, MAX_INT32)
        bias[token] = check_real(f"logit_bias[{token}]", value, -largest, largest)
    return bias
