"""Keeps every distribution that an engine samples from, seen from inside its compiled steps."""

from typing import Any

import jax
import numpy as np

from jaxinfer import LLM, SamplingParams


class LogitsRecorder:
    """A logits processor that changes nothing and remembers the logits by seed and position."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, logits: jax.Array, state: Any) -> jax.Array:
        jax.debug.callback(self._keep, logits, state.seeds, state.positions)
        return logits

    def _keep(self, logits: Any, seeds: Any, positions: Any) -> None:
        rows = zip(np.array(logits), np.asarray(seeds), np.asarray(positions), strict=True)
        for row, (seed, _), position in rows:
            if seed:  # 0 marks rows that only fill up the batch
                self._seen[int(seed), int(position)] = row

    def logits(self, seed: int, prompt_length: int, count: int) -> np.ndarray:
        """Float32 ``[count, V]`` of the tokens sampled after a prompt."""
        jax.effects_barrier()
        return np.stack([self._seen[seed, prompt_length + i] for i in range(count)])


def sample_recorded(
    prompts: list[list[int]], num_outputs: int, **engine: Any
) -> tuple[LLM, list[list[int]], list[np.ndarray]]:
    """Sample at temperature 1 on a new engine.

    Returns:
        The engine, closed; each sequence, prompt and answer; and each answer's logits ``[n, V]``.
    """
    recorder = LogitsRecorder()
    params = [
        SamplingParams(temperature=1.0, max_tokens=num_outputs, ignore_eos=True, seed=i + 1)
        for i in range(len(prompts))
    ]
    options = {"compile_ahead": False, "show_progress": False, "logits_processor": recorder}
    with LLM(**(options | engine)) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        errors = [output.error for output in outputs if output.error]
        if errors:
            raise RuntimeError(errors[0])
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    sequences = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    logits = [recorder.logits(i + 1, len(prompt), num_outputs) for i, prompt in enumerate(prompts)]
    return llm, sequences, logits
