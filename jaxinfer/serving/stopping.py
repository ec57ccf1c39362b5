"""When a token ends a request: end-of-sequence, stop tokens, and the limits on length."""

from collections.abc import Set as AbstractSet

from jaxinfer.serving.request import FinishReason, Request


def set_limits(request: Request, max_model_len: int) -> None:
    """Set how long the request may become.

    Args:
        request: a new request.
        max_model_len: prompt and output together never exceed this.

    Raises:
        ValueError: if the prompt is empty or leaves no room for one output token.
    """
    num_prompt = request.num_prompt_tokens
    needed = num_prompt if request.prefill_only else num_prompt + 1
    if num_prompt == 0:
        raise ValueError(f"request {request.request_id!r}: prompt_token_ids must not be empty")
    if needed > max_model_len:
        raise ValueError(
            f"request {request.request_id!r}: the prompt has {num_prompt} tokens and needs room "
            f"for {needed - num_prompt} more, but max_model_len is {max_model_len}; shorten the "
            "prompt or raise max_model_len"
        )
    if request.prefill_only:
        request.max_num_tokens = request.max_cached_tokens = num_prompt
        return
    limit = max_model_len
    if request.params.max_tokens is not None:
        limit = min(limit, num_prompt + request.params.max_tokens)
    request.max_num_tokens = limit
    request.max_cached_tokens = limit - 1


def check_stop(
    request: Request, token_id: int, eos_token_ids: AbstractSet[int]
) -> tuple[FinishReason, int | None] | None:
    """Whether `token_id`, just appended to the outputs, ends the request.

    Returns:
        The finish reason and stop reason as in vLLM (the stop token's id; None for
        end-of-sequence and for a limit), or None to go on.
    """
    params = request.params
    if len(request.output_token_ids) >= params.min_tokens:
        if token_id in eos_token_ids and not params.ignore_eos:
            return "stop", None
        if params.stop_token_ids and token_id in params.stop_token_ids:
            return "stop", token_id
    if request.num_known_tokens >= request.max_num_tokens:
        return "length", None
    return None
