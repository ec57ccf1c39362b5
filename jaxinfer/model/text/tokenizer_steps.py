"""The steps of a tokenizer's normalizer, pre-tokenizer or decoder, as tokenizer.json has them."""

import json
from typing import Any

_LISTS = ("normalizers", "pretokenizers", "decoders")


def steps_of(part: Any) -> list[dict[str, Any]]:
    """JSON objects in order; several for a sequence, none for None."""
    return [] if part is None else steps_of_json(json.loads(part.__getstate__()))


def steps_of_json(state: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The same, of what tokenizer.json has."""
    if state is None:
        return []
    if state["type"] != "Sequence":
        return [state]
    name = next(name for name in _LISTS if name in state)
    return [step for each in state[name] for step in steps_of_json(each)]
