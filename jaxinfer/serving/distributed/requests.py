"""A request as JSON, so that every process enqueues the same one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.inputs import Prompt

_FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]
_DEFAULTS = SamplingParams()


def request_to_json(
    request_id: str, prompt: Prompt, params: SamplingParams, *, prefill_only: bool, priority: int
) -> dict[str, Any]:
    """All that decides what the request does; the text of its prompt does not."""
    given = {
        name: getattr(params, name)
        for name in _FIELDS
        if getattr(params, name) != getattr(_DEFAULTS, name)
    }
    return {
        "id": request_id,
        "token_ids": prompt.token_ids,
        "cache_salt": prompt.cache_salt,
        "params": given,
        "prefill_only": prefill_only,
        "priority": priority,
    }


def request_from_json(message: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Engine.add`."""
    return {
        "request_id": message["id"],
        "prompt": Prompt(message["token_ids"], None, message["cache_salt"]),
        "params": SamplingParams(**message["params"]),
        "prefill_only": message["prefill_only"],
        "priority": message["priority"],
    }
