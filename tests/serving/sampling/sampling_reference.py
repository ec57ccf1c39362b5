"""What the sampler must do, in NumPy and float64: readable, slow, with sorts."""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxinfer.sampling_params import FULL, SamplingParams
from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.sampling import sampler
from jaxinfer.serving.sampling.layout import (
    EDIT_WIDTH,
    IN_OUTPUT,
    IN_PROMPT,
    MODES,
    Column,
    LogitEdits,
    SamplingArrays,
)
from jaxinfer.serving.slots.row_sampling import RowSampling, prepare_row


class Row(NamedTuple):
    """One row of a batch that samples, and its tokens so far."""

    sampling: RowSampling
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()

    @property
    def mode(self) -> str:
        return self.sampling.mode(len(self.output))


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
) -> list[Row]:
    """One row for each params; seed i for row i unless given."""
    return [
        Row(
            prepare_row(
                p,
                seed=i if seeds is None else seeds[i],
                vocab_size=vocab_size,
                prompt_token_ids=prompt,
                **extra,
            ),
            prompt,
            list(output),
        )
        for i, p in enumerate(params)
    ]


def batch_mode(rows: Sequence[Row]) -> str:
    """The least mode that serves every row."""
    return MODES[max((MODES.index(row.mode) for row in rows), default=0)]


def pack(rows: Sequence[Row], mode: str, *, batch_size: int, vocab_size: int) -> SamplingArrays:
    """What a batch is sampled by, with all that slots would hold made anew; the rest is padding."""
    nobody = prepare_row(
        SamplingParams(temperature=0.0), seed=0, vocab_size=vocab_size, prompt_token_ids=[]
    )
    rows = [*rows, *[Row(nobody)] * (batch_size - len(rows))]
    scalars = np.stack([row.sampling.scalars for row in rows])
    scalars[:, Column.POSITION] = [len(row.prompt) + len(row.output) for row in rows]
    if mode not in FULL:
        return SamplingArrays(scalars)
    edits = LogitEdits(
        np.full((batch_size, EDIT_WIDTH), -1, np.int32),
        np.zeros((batch_size, EDIT_WIDTH), np.float32),
        np.zeros((batch_size, EDIT_WIDTH), np.int32),
        np.full((batch_size, -(-vocab_size // 32)), -1, np.int32),
    )
    counts = np.zeros((batch_size, vocab_size), np.int32)
    for i, row in enumerate(rows):
        if row.sampling.edits is not None:
            row.sampling.edits.write(LogitEdits(*(array[i] for array in edits)), TokenEdits())
        counts[i, list(row.prompt)] = IN_PROMPT
        np.add.at(counts[i], list(row.output), IN_OUTPUT)
    return SamplingArrays(scalars, counts, edits)


def packed_specs(mode: str) -> SamplingArrays:
    """How `pack` is divided among devices that share the vocabulary."""
    whole, by_token = PartitionSpec(), PartitionSpec(None, "tensor")
    if mode not in FULL:
        return SamplingArrays(whole)
    return SamplingArrays(whole, by_token, LogitEdits(whole, whole, whole, whole))


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
    mode = mode or batch_mode(rows)
    arrays = pack(rows, mode, batch_size=len(logits), vocab_size=logits.shape[1])
    output = jitted(mode, max_logprobs)(logits.astype(np.float32), arrays)
    return jax.tree.map(np.asarray, output)
