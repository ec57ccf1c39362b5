"""What the sampler must do, in NumPy and float64: readable, slow, with sorts."""

from collections.abc import Sequence
from functools import cache, partial

import jax
import numpy as np

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving import sampler
from jaxinfer.serving.sampling_batch import BatchRow, batch_mode, pack, prepare_row


def processed_logits(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
) -> np.ndarray:
    """Masks, biases and penalties, in vLLM's order, in float32."""
    logits = logits.astype(np.float32).copy()
    if params.allowed_token_ids is not None:
        forbidden = np.setdiff1d(np.arange(len(logits)), list(params.allowed_token_ids))
        logits[forbidden] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += np.float32(bias)
    logits[list(banned)] = -np.inf
    for token in {*prompt, *output}:
        scale = np.float32(params.repetition_penalty)
        logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
    for token in set(output):
        logits[token] -= np.float32(params.frequency_penalty) * np.float32(output.count(token))
        logits[token] -= np.float32(params.presence_penalty)
    return logits


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Temperature, min_p, top_k, top_p; float64 `[V]` that sums to 1."""
    scaled = logits.astype(np.float64) - logits.max()
    if not params.is_greedy:
        scaled = scaled / params.temperature
    weights = np.exp(scaled)
    if not params.is_greedy:
        weights[weights < params.min_p * (1 - 1e-6)] = 0
        order = np.argsort(-logits, kind="stable")  # ties: the lowest ids first
        if params.top_k > 0:
            weights[order[params.top_k :]] = 0
        if params.top_p < 1:
            reached = np.cumsum(weights[order]) / weights.sum()
            size = 1 + np.searchsorted(reached, params.top_p * (1 - 1e-6))
            weights[order[size:]] = 0
    return weights / weights.sum()


@cache
def jitted(mode: str, max_logprobs: int = 20):
    return jax.jit(partial(sampler.sample, mode=mode, max_logprobs=max_logprobs))


def make_rows(
    params: Sequence[SamplingParams],
    vocab_size: int,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    seeds: Sequence[int] | None = None,
    **extra,
) -> list[BatchRow]:
    """One row for each params; seed i for row i unless given."""
    return [
        BatchRow(
            prepare_row(
                p,
                seed=i if seeds is None else seeds[i],
                vocab_size=vocab_size,
                prompt_token_ids=prompt,
                **extra,
            ),
            len(prompt) + len(output),
            list(output),
        )
        for i, p in enumerate(params)
    ]


def run(
    logits: np.ndarray,
    params: Sequence[SamplingParams],
    *,
    mode: str | None = None,
    max_logprobs: int = 20,
    **row_arguments,
) -> sampler.StepOutput:
    """Sample once; the result in NumPy."""
    rows = make_rows(params, logits.shape[1], **row_arguments)
    arrays = pack(
        rows,
        mode or batch_mode(rows),
        batch_size=len(logits),
        vocab_size=logits.shape[1],
        history_width=32,
    )
    output = jitted(mode or batch_mode(rows), max_logprobs)(logits.astype(np.float32), arrays)
    return jax.tree.map(np.asarray, output)
