"""Keys of programs as JSON values, for the processes that trace them."""

import dataclasses
from typing import Any, get_type_hints

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.registry import KINDS


def key_values(key: ProgramKey) -> list[Any]:
    """A key of any kind as JSON values."""
    return [type(key).__name__, dataclasses.asdict(key)]


def key_from_values(values: list[Any]) -> ProgramKey:
    """The key that `key_values` described.

    Raises:
        ValueError: no kind of program has keys of that name.
    """
    name, fields = values
    for key_type in KINDS:
        if key_type.__name__ == name:
            return _from_json(key_type, fields)
    raise ValueError(f"there are no programs of kind {name}")


def _from_json(hint: Any, value: Any) -> Any:
    """A field's value, or a whole dataclass: JSON has neither these nor tuples."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{name: _from_json(hints[name], each) for name, each in value.items()})
    return tuple(value) if isinstance(value, list) else value
