"""Stopping criteria of a request: end-of-sequence, stop tokens and length limits."""

from collections.abc import Set as AbstractSet

from jaxinfer.outputs import FinishReason
from jaxinfer.serving.requests.request import LengthLimits, Request


def set_limits(request: Request, max_model_len: int, eos_token_ids: AbstractSet[int]) -> None:
    """Set the request's maximum length and its ending tokens; `eos_token_ids` unless ignored.

    Raises:
        ValueError: if the prompt is empty or leaves no room for one output token beside forced
            ones, or is scored from a token on that it does not have.
    """
    num_prompt, num_forced = request.num_prompt_tokens, len(request.output_token_ids)
    needed = num_prompt if request.new.prefill_only else num_prompt + num_forced + 1
    if num_prompt == 0:
        raise ValueError(f"request {request.request_id!r}: prompt_token_ids must not be empty")
    if request.params.prompt_logprob_start >= num_prompt > 0:
        raise ValueError(
            f"request {request.request_id!r}: prompt_logprob_start is "
            f"{request.params.prompt_logprob_start}, but the prompt has {num_prompt} tokens"
        )
    if num_forced and request.new.prefill_only:
        raise ValueError(
            f"request {request.request_id!r}: forced_token_ids begin an answer, and it has none"
        )
    if needed > max_model_len:
        forced = f" ({num_forced} of them forced_token_ids)" if num_forced else ""
        raise ValueError(
            f"request {request.request_id!r}: the prompt has {num_prompt} tokens and needs room "
            f"for {needed - num_prompt} more{forced}, but max_model_len is {max_model_len}; "
            f"shorten {'one' if forced else 'the prompt'} or raise max_model_len"
        )
    if request.new.prefill_only:
        request.limits = LengthLimits(num_prompt, num_prompt)
        return
    params = request.params
    limit = max_model_len
    if params.max_tokens is not None:
        limit = min(limit, num_prompt + params.max_tokens)
    request.limits = LengthLimits(limit, limit - 1)
    eos = frozenset() if _ignores_eos(request) else eos_token_ids
    request.ending_token_ids = frozenset(eos).union(params.stop_token_ids or ())


def check_stop(
    request: Request, token_id: int, eos_token_ids: AbstractSet[int]
) -> tuple[FinishReason, int | None] | None:
    """Whether `token_id`, just appended to the outputs, ends the request.

    Args:
        request: with its limits set; `token_id` no longer counts as in flight.

    Returns:
        The finish reason and stop reason as in vLLM (the stop token's id; None for
        end-of-sequence and for a limit), or None to continue.
    """
    num_outputs = len(request.output_token_ids)
    if token_id in request.ending_token_ids and num_outputs >= request.params.min_tokens:
        if token_id in eos_token_ids and not _ignores_eos(request):
            return "stop", None
        return "stop", token_id
    if request.num_prompt_tokens + num_outputs >= request.limits.num_tokens:
        return "length", None
    return None


def _ignores_eos(request: Request) -> bool:
    """Whether it goes on after end-of-sequence, which a grammar allows at an answer's end only."""
    return request.params.ignore_eos and request.params.structured_outputs is None
