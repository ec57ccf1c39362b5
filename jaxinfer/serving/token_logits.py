"""Logits of a few tokens after prompts that run without sampling."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxinfer.errors import StepError
from jaxinfer.model.head_rows import head_rows
from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.requests.new_request import NewRequest, Prompt

_MOST_SETS = 16  # whose rows are kept, up to 16 MiB each for 1024 labels of an 8B model


@dataclasses.dataclass(frozen=True, slots=True)
class PromptLogits:
    """Logits of given tokens after a prompt.

    Attributes:
        output: of the request that ran the prompt.
        logits: float64 ``[N]``, one for each token.
    """

    output: RequestOutput
    logits: np.ndarray


class TokenLogits:
    """Computes logits of a few tokens: the whole head is never multiplied.

    The head's rows of these tokens are copied to the host once for each set of tokens, and again
    after the weights have changed.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        # Used by the engine's thread only, between whose steps the weights change.
        self._rows: dict[tuple[int, ...], np.ndarray] = {}
        self._version = 0

    def after(
        self,
        prompts: Sequence[Prompt],
        token_ids: tuple[int, ...],
        *,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[PromptLogits]:
        """Logits of tokens after each prompt, before any logits processor.

        Args:
            prompts: checked prompts, in whose place no token need fit.
            token_ids: ids in [0, V), N of them.
            use_tqdm: as of `LLM.generate`.

        Raises:
            ValueError: the engine runs on several processes. Nothing has been run.
            StepError: a request failed, its logits are not finite, or the weights were swapped
                behind it.
        """
        driver = self._handle.driver
        self._check_one_process()
        params = SamplingParams()
        requests = [
            NewRequest(prompt=p, params=params, prefill_only=True, pooled=True) for p in prompts
        ]
        outputs = run_requests(driver, requests, use_tqdm=use_tqdm)
        rows, version = driver.call(lambda: self._rows_of(token_ids))
        return [PromptLogits(each, _logits(each, rows, version)) for each in outputs]

    def _check_one_process(self) -> None:
        head = self._handle.loaded.replicas[0].runner.resident.head
        norm = None if head is None else head["model"]["norm"]
        if norm is not None and not norm.is_fully_addressable:
            raise ValueError(
                "the head lies on several processes, of which this call reads one; run decide() "
                "and rerank() on an engine of one process"
            )

    def _rows_of(self, token_ids: tuple[int, ...]) -> tuple[np.ndarray, int]:
        """Rows ``[N, E]`` of the head, and the version of its weights; for the engine's thread.

        Raises:
            StepError: the weights are not on the devices any more.
        """
        version = self._handle.weight_version
        if version != self._version:
            self._rows.clear()
            self._version = version
        if (known := self._rows.get(token_ids)) is None:
            head = self._handle.loaded.replicas[0].runner.resident.head
            if head is None:
                raise StepError("the engine fell asleep before logits were computed; call again")
            known = head_rows(head, token_ids)
            while len(self._rows) >= _MOST_SETS:
                self._rows.pop(next(iter(self._rows)))  # the oldest
            self._rows[token_ids] = known
        return known, version


def _logits(output: RequestOutput, rows: np.ndarray, version: int) -> np.ndarray:
    if output.error is not None or output.embedding is None:
        raise StepError(f"reading a prompt failed: {output.error}") from output.cause
    if output.weight_version != version:
        raise StepError(
            "the weights were swapped between a prompt and its logits; call again after "
            "update_params() has returned"
        )
    logits = rows.astype(np.float64) @ np.asarray(output.embedding, np.float64)
    if not np.isfinite(logits).all():
        raise StepError("logits are not finite: the head's weights are damaged")
    return logits
