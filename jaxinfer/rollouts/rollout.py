"""Runs rollouts: requests without text, whose tokens and log-probabilities become arrays."""

import itertools
import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jax
import numpy as np

from jaxinfer.errors import StepError
from jaxinfer.inputs import TokensPrompt
from jaxinfer.logprobs import ChosenLogprobs
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.rollouts.arrays import FinishCode, Rollouts
from jaxinfer.rollouts.measured import measured_arrays
from jaxinfer.sampling_params import SamplingParams

logger = logging.getLogger("jaxinfer")

Generate = Callable[[Sequence[TokensPrompt], SamplingParams], list[RequestOutput]]


def rollout_params(params: SamplingParams, n: int | None) -> SamplingParams:
    """The parameters of a rollout's requests: no text, and each token's own log-probability.

    Raises:
        ValueError: there are stop strings, which only text has, or labels, which the arrays have no
            place for; or `n` is out of range.
    """
    if params.stop:
        raise ValueError("a rollout makes no text to find stop strings in; use stop_token_ids")
    if params.logprob_token_ids is not None:
        raise ValueError("rollouts have no place for logprob_token_ids; use generate")
    n = params.n if n is None else n
    fields: dict[str, Any] = {"prompt_logprobs": None, "prompt_logprob_start": 0}
    return params.clone(n=n, logprobs=0, detokenize=False, **fields)


def choose_pad(
    given: int | None,
    end_token_ids: AbstractSet[int],
    vocab_size: int,
    tokenizer: Tokenizer | None,
) -> int:
    """The id for padding: the given one, or one that ends nothing and that no model samples.

    That is the highest id that the tokenizer has no token for, or else its highest special token;
    without a tokenizer it is the highest id.

    Raises:
        ValueError: the given one ends completions, or is not in the vocabulary.
        TypeError: it is no integer.
    """
    if given is None:
        free = [i for i in reversed(range(vocab_size)) if i not in end_token_ids]
        size = 0 if tokenizer is None else len(tokenizer)
        unused = (i for i in free if tokenizer is None or i >= size or tokenizer.is_special(i))
        return next(unused, free[0])
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"pad_token_id must be an integer, got {given!r}")
    if not 0 <= given < vocab_size:
        raise ValueError(f"pad_token_id must be from 0 to {vocab_size - 1}, got {given}")
    if given in end_token_ids:
        raise ValueError(
            f"pad_token_id {given} is an end token, which completions hold too: a loss that masks "
            "ids != pad would leave it out; give an id that is never sampled, or None"
        )
    return given


def run_rollouts(
    generate: Generate,
    prompts: Sequence[TokensPrompt],
    params: SamplingParams,
    *,
    pad_token_id: int,
    pad_to: tuple[int, int] | None,
    device: Any,
    allow_errors: bool,
) -> Rollouts:
    """Complete prompts and gather their tokens; see `LLM.rollout`.

    Args:
        generate: `LLM.generate`, or what completes prompts of token ids as it does.
        prompts: cut to what the model takes.
        params: of `rollout_params`.
        pad_token_id: of `choose_pad`.
        pad_to: as of `LLM.rollout`, like the last two.
    """
    check_widths(prompts, params, pad_to)
    outputs = generate(prompts, params)
    if not allow_errors:
        check_outputs(outputs)
    rollouts = to_rollouts(outputs, params, pad_token_id=pad_token_id, pad_to=pad_to)
    sampled = rollouts.completion_mask & (rollouts.completion_ids == pad_token_id)
    if sampled.any():
        logger.warning(
            "pad_token_id %d was sampled in %d of %d rows: use completion_mask, or give another",
            *(pad_token_id, int(np.any(sampled, axis=1).sum()), len(sampled)),
        )
    return rollouts if device is None else jax.device_put(rollouts, device)


def check_widths(
    prompts: Sequence[TokensPrompt], params: SamplingParams, pad_to: tuple[int, int] | None
) -> None:
    """Check, before anything runs, that all prompts and completions will fit the widths.

    Raises:
        TypeError: `pad_to` is no pair of integers.
        ValueError: a prompt is longer than its width, or a completion may be.
    """
    if pad_to is None:
        return
    if not isinstance(pad_to, tuple) or [type(width) for width in pad_to] != [int, int]:
        raise TypeError(f"pad_to must be (prompt width, completion width), got {pad_to!r}")
    for i, prompt in enumerate(prompts):
        if (length := len(prompt["prompt_token_ids"])) > pad_to[0]:
            raise ValueError(f"prompts[{i}] has {length} tokens; pad_to has room for {pad_to[0]}")
    if params.max_tokens is None or params.max_tokens > pad_to[1]:
        raise ValueError(
            f"max_tokens is {params.max_tokens}, but pad_to has room for completions of "
            f"{pad_to[1]}; lower max_tokens, or raise pad_to[1]"
        )


def check_outputs(outputs: Sequence[RequestOutput]) -> None:
    """Raise if a request failed: a loss would silently leave out its rows.

    Raises:
        StepError: counts the failed ones, and names the first and its cause.
    """
    failed = [i for i, output in enumerate(outputs) if output.error is not None]
    if failed:
        first = outputs[failed[0]]
        raise StepError(
            f"{len(failed)} of {len(outputs)} prompts failed; the first, prompts[{failed[0]}]: "
            f"{first.error}; give allow_errors=True to get the others' rows, with these masked"
        ) from first.cause


def to_rollouts(
    outputs: Sequence[RequestOutput],
    params: SamplingParams,
    *,
    pad_token_id: int,
    pad_to: tuple[int, int] | None,
) -> Rollouts:
    """NumPy arrays of finished outputs with equally many completions each.

    Args:
        outputs: of requests with `logprobs=0`.
        params: of these requests.
        pad_token_id: the id that fills padding.
        pad_to: P and C; None is the longest prompt and completion, at least 1.
    """
    prompts = [output.prompt_token_ids for output in outputs]
    rows = [completion for output in outputs for completion in output.outputs]
    n = len(rows) // len(outputs) if outputs else 1
    # What failed may have tokens without log-probabilities, which no trainer can use.
    logprobs = [_logprobs(row) for row in rows]
    tokens = [
        () if values is None else row.token_ids for row, values in zip(rows, logprobs, strict=True)
    ]
    prompt_lengths, lengths = _lengths(prompts), _lengths(tokens)
    if pad_to is None:
        pad_to = (max(1, *prompt_lengths, 1), max(1, *lengths, 1))
    # A prompt is converted once, then copied for its other completions.
    prompt_mask = np.arange(pad_to[0]) >= pad_to[0] - prompt_lengths[:, None]
    prompt_ids = _filled(prompt_mask, prompts, pad_token_id, np.int32)
    completion_mask = np.arange(pad_to[1]) < lengths[:, None]
    return Rollouts(
        prompt_ids=prompt_ids.repeat(n, axis=0),
        prompt_mask=prompt_mask.repeat(n, axis=0),
        completion_ids=_filled(completion_mask, tokens, pad_token_id, np.int32),
        completion_mask=completion_mask,
        logprobs=_filled(completion_mask, [values or () for values in logprobs], 0, np.float32),
        prompt_lengths=prompt_lengths.repeat(n),
        lengths=lengths,
        finish_reasons=np.array([_code(row) for row in rows], np.int32),
        weight_versions=np.array([row.weight_version for row in rows], np.int32),
        pad_token_id=pad_token_id,
        **measured_arrays(rows, completion_mask, params),
    )


def _logprobs(row: CompletionOutput) -> Sequence[float] | None:
    return row.logprobs.values if isinstance(row.logprobs, ChosenLogprobs) else None


def _lengths(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    return np.fromiter(map(len, rows), np.int32, len(rows))


def _filled(mask: np.ndarray, rows: Sequence[Sequence[Any]], empty: Any, dtype: Any) -> np.ndarray:
    """`[R, W]` with the rows' entries where the mask is True, in order."""
    array = np.full(mask.shape, empty, dtype)
    array[mask] = np.fromiter(itertools.chain.from_iterable(rows), dtype, int(mask.sum()))
    return array


def _code(row: CompletionOutput) -> FinishCode:
    return FinishCode[(row.finish_reason or "error").upper()]
