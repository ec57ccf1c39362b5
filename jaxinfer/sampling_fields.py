"""The ranges of a request's sampling parameters, and the checks of their fields."""

import enum
from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.checks import (
    MAX_INT32,
    check_above,
    check_bias,
    check_flag,
    check_integer,
    check_real,
    check_strings,
    check_token_ids,
)
from jaxinfer.structured_outputs import check_structured_outputs

MAX_N = 1024
MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 100.0
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 256
MAX_LOGIT_BIAS = 300
MAX_BIAS = 100.0
MAX_TIMEOUT = 1e6
MAX_LABELS = 64
"""Most `logprob_token_ids` of a request."""

Put = Callable[[str, Any], None]
"""Stores a field in its plain Python type."""


class RequestOutputKind(enum.IntEnum):
    """What the outputs of a running request hold; vLLM's names and values."""

    CUMULATIVE = 0
    """After each step, all so far."""
    DELTA = 1
    """After each step, the new part."""
    FINAL_ONLY = 2
    """One output, at the end."""


_RANGES: Mapping[str, tuple[float, float]] = {
    "n": (1, MAX_N),
    "temperature": (0.0, MAX_TEMPERATURE),
    "top_k": (-1, MAX_INT32),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, MAX_REPETITION_PENALTY),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "timeout": (0.0, MAX_TIMEOUT),
    "min_tokens": (0, MAX_INT32),
    "seed": (-(2**63), 2**63 - 1),
    "max_tokens": (1, MAX_INT32),
    "logprobs": (-1, MAX_INT32),
    "prompt_logprobs": (-1, MAX_INT32),
    "prompt_logprob_start": (0, MAX_INT32),
    "support": (0, MAX_INT32),
    "truncate_prompt_tokens": (-1, MAX_INT32),
    "thinking_token_budget": (-1, MAX_INT32),
    "output_kind": (0, max(RequestOutputKind)),
}
"""Least and largest values of numbers; fields are stored as plain ones, integers or not as here."""

_MAY_BE_NONE = frozenset(
    {"timeout", "seed", "max_tokens", "logprobs", "prompt_logprobs", "support"}
    | {"truncate_prompt_tokens", "thinking_token_budget"}
)


def check_fields(params: Any, put: Put) -> None:
    """Check every field of `SamplingParams`, alone and together.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: a field is outside its range or two fields contradict each other.
    """
    _check_numbers(params, put)
    _check_collections(params, put)
    for name in (
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "detokenize",
        "entropy",
    ):
        check_flag(name, getattr(params, name))
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ValueError(
            f"min_tokens ({params.min_tokens}) must not exceed max_tokens ({params.max_tokens})"
        )
    if params.structured_outputs is not None and params.min_tokens:
        raise ValueError(
            "min_tokens and structured_outputs exclude each other: the grammar says where an "
            "answer may end"
        )
    if params.stop and not params.detokenize:
        raise ValueError("stop strings need detokenize=True; use stop_token_ids instead")
    if params.prompt_logprob_start and params.prompt_logprobs is None:
        raise ValueError("prompt_logprob_start says where prompt_logprobs begin; give these too")
    if params.forced_token_ids:
        _check_forced(params, len(params.forced_token_ids))


def _check_forced(params: Any, count: int) -> None:
    """Refuse what can't be exact behind forced tokens, or leaves nothing to draw."""
    if params.max_tokens is not None and params.max_tokens <= count:
        raise ValueError(
            f"forced_token_ids has {count} entries, which count as answer: max_tokens must be "
            f"more, got {params.max_tokens}; to score a whole answer, make it part of the prompt "
            "and give prompt_logprobs with prompt_logprob_start"
        )
    if params.has_constraints:
        raise ValueError(
            "forced_token_ids don't go with structured_outputs, thinking_token_budget or "
            "bad_words, which have not seen them; end the prompt with these tokens instead"
        )
    if params.support is not None and params.edits_logits:
        raise ValueError(
            "support of forced_token_ids doesn't go with penalties, logit_bias, allowed_token_ids "
            "or min_tokens: a prefill applies none; leave out one or the other"
        )


def _check_numbers(params: Any, put: Put) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is True:  # as in vLLM
            put(name, 1)
    for name, (low, high) in _RANGES.items():
        value = getattr(params, name)
        if value is not None or name not in _MAY_BE_NONE:
            check: Any = check_real if isinstance(low, float) else check_integer
            put(name, (check_above if name == "top_p" else check)(name, value, low, high))
    if params.timeout == 0.0:
        raise ValueError("timeout must be above 0 seconds, got 0; None sets no limit")
    if params.truncate_prompt_tokens == 0:
        raise ValueError("truncate_prompt_tokens must be at least 1, or -1 for all that fit, got 0")
    for name in ("seed", "thinking_token_budget"):
        if getattr(params, name) == -1:
            put(name, None)
    put("output_kind", RequestOutputKind(params.output_kind))


def _or_empty(values: Any) -> Any:
    """Nothing for None; an array's truth is no test of that."""
    return () if values is None else values


def _check_collections(params: Any, put: Put) -> None:
    stop = (params.stop,) if isinstance(params.stop, str) else params.stop
    put("stop", check_strings("stop", stop, MAX_STOP_STRINGS, MAX_STOP_STRING_LENGTH))
    put(
        "bad_words",
        check_strings("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH),
    )
    stops = check_token_ids("stop_token_ids", _or_empty(params.stop_token_ids))
    put("stop_token_ids", stops)
    if len(stops) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids must have at most {MAX_STOP_TOKEN_IDS} entries")
    if params.allowed_token_ids is not None:
        allowed = check_token_ids("allowed_token_ids", params.allowed_token_ids)
        if not allowed:
            raise ValueError("allowed_token_ids must not be empty; use None to allow all")
        put("allowed_token_ids", allowed)
    forced = check_token_ids("forced_token_ids", _or_empty(params.forced_token_ids))
    put("forced_token_ids", forced)
    if params.logprob_token_ids is not None:
        labels = check_token_ids("logprob_token_ids", params.logprob_token_ids)
        if not 1 <= len(labels) <= MAX_LABELS:
            raise ValueError(f"logprob_token_ids must have 1 to {MAX_LABELS} entries")
        put("logprob_token_ids", labels)
    if params.logit_bias is not None:
        put("logit_bias", check_bias(params.logit_bias, MAX_LOGIT_BIAS, MAX_BIAS))
    if params.structured_outputs is not None:
        put("structured_outputs", check_structured_outputs(params.structured_outputs))
