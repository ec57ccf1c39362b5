"""A scheduler's request for tests, made of its tokens and sampling parameters."""

from collections.abc import Iterable
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.request import Request


def host_request(
    request_id: str,
    token_ids: Iterable[int],
    params: SamplingParams | None = None,
    *,
    cache_salt: str | None = None,
    seed: int = 0,
    **fields: Any,
) -> Request:
    """A waiting request; `fields` are its `NewRequest`'s."""
    params = params or SamplingParams()
    prompt = Prompt(list(token_ids), cache_salt=cache_salt)
    return Request(request_id, NewRequest(prompt=prompt, params=params, **fields), params, seed)
