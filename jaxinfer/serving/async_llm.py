"""The asyncio API: `AsyncLLM`, under vLLM's name, for asynchronous programs."""

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxinfer.capture import CapturedTokens
from jaxinfer.errors import JaxinferError
from jaxinfer.expert_statistics import ExpertStatistics, RebalancedExperts
from jaxinfer.model.adapters.lora_request import AdapterChoice
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import EmbeddingOutput, RequestOutput
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.door import Door
from jaxinfer.serving.driver.async_stream import stream_request_async
from jaxinfer.serving.driver.pauses import InFlightPolicy
from jaxinfer.serving.driver.sleep import check_level, check_mode
from jaxinfer.serving.driver.sleep_state import PauseMode, SleepTag
from jaxinfer.serving.engine.metrics import Metric
from jaxinfer.serving.expert_balance import rebalance
from jaxinfer.serving.handle_start import start_handle
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.pooling.async_judge import AsyncJudge
from jaxinfer.serving.pooling.embedding import embedding_task
from jaxinfer.serving.pooling.embedding_model import makes_vectors


class AsyncLLM(Door):
    """A model that completes prompts for any number of tasks, of one event loop or several.

    Making one takes as long as making an `LLM`, and blocks as that does: do it before the event
    loop, or by `asyncio.to_thread`.

    >>> async with AsyncLLM("Qwen/Qwen3-0.6B") as engine:                   # doctest: +SKIP
    ...     async for output in engine.generate("Once upon a time"):
    ...         print(output.outputs[0].text)

    Args:
        model: a directory, a hub id or "bundled-experts"; None is the bundled model, or `params`.
        arguments: all that `LLM` takes, with the same meaning.

    Attributes:
        judge: chooses between labels, ranks documents and scores pairs of texts: `LLM.judge`, with
            `await`.

    Raises:
        Exception: as `LLM`.
    """

    def __init__(self, model: str | Path | None = None, **arguments: Any) -> None:
        handle = start_handle("AsyncLLM", model, **arguments)
        super().__init__(handle)
        self.judge = AsyncJudge(
            handle.loaded.reader,
            functools.partial(makes_vectors, handle.loaded.directory),
            lambda request: stream_request_async(handle.driver, request, keeps=handle),
            handle.read_head,
            handle.loaded.classifier,
        )

    @property
    def is_running(self) -> bool:
        """Whether it takes requests: it has neither failed nor been shut down."""
        return not self._handle.is_closed and self._handle.driver.failure is None

    @property
    def errored(self) -> bool:
        """Whether it has failed for good."""
        return self.dead_error is not None

    @property
    def dead_error(self) -> JaxinferError | None:
        """Why it has failed for good; None if it has not, or was shut down since."""
        return None if self._handle.is_closed else self._handle.driver.failure

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: AdapterChoice = None,
        priority: int = 0,
        prefill_only: bool = False,
        pooled: bool = False,
        answer: AnswerFormat | None = None,
        capture: bool | CapturedTokens = False,
        intervene: bool = False,
    ) -> AsyncGenerator[RequestOutput]:
        """Complete one prompt, for `async for`.

        Cancelling the task, leaving the iteration or dropping it aborts the request.

        Args:
            prompt: as in `LLM.stream`.
            sampling_params: None uses the model's defaults; its `output_kind` says whether outputs
                hold all so far, only the new part, or come once at the end.
            request_id: a name for `abort` that the outputs bear; others may bear the same. None
                makes one.
            lora_request: as in `LLM.generate`; a directory is read here and now, while
                `load_adapter` leaves the event loop free.
            priority: as in `LLM.generate`.
            prefill_only: only run the prompt, for its log-probabilities: no token is sampled.
            pooled: only run the prompt, for the last output's `embedding`; `embed` is simpler.
            answer: how its text is read as reasoning, content and tool calls; None leaves it whole.
            capture: as in `LLM.generate`; the last output has the activations.
            intervene: as in `LLM.generate`.

        Returns:
            An iterator of outputs. The last has `finished`; after `abort` or `shutdown` its
            `finish_reason` is "abort".

        Raises:
            TypeError, ValueError: not a prompt, or it can't be run, at once.
            RuntimeError: the engine is shut down.
            StepError: it has failed for good; in the iteration.
        """
        driver, arguments = self._handle.driver, self._handle.arguments
        request = arguments.one(
            prompt,
            sampling_params,
            priority,
            request_id or "",
            prefill_only=prefill_only,
            pooled=pooled,
            answer=answer,
            lora_request=lora_request,
        )
        (request,) = self._handle.loaded.inspection.requests([request], capture, intervene)
        return stream_request_async(driver, request, keeps=self)

    async def set_intervention_state(self, state: Any) -> None:
        """Give the intervention another state: see `LLM.set_intervention_state`."""
        inspection = self._handle.loaded.inspection
        await self._handle.driver.call_async(lambda: inspection.replace_state(state))

    async def embed(
        self,
        prompts: Any,
        *,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        normalize: bool = True,
    ) -> list[EmbeddingOutput]:
        """Texts as vectors: see `LLM.embed`. Cancelling the task aborts their requests.

        Raises:
            TypeError, ValueError, ModelLoadError, StepError: as `LLM.embed`.
            RuntimeError: the engine is shut down.
        """
        self._handle.check_open()
        task = embedding_task(
            self.embedding_model,
            prompts,
            self._handle.loaded.reader,
            dimensions=dimensions,
            prompt_name=prompt_name,
            normalize=normalize,
        )
        return await self.judge.run(task)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End all requests of these names, after the step that runs; unknown ones are ignored.

        Each iteration ends with an output whose `finish_reason` is "abort".

        Raises:
            RuntimeError: the engine is shut down.
        """
        labels = [request_id] if isinstance(request_id, str) else list(request_id)
        driver = self._handle.driver
        await driver.call_async(lambda: driver.abort_labels(labels))

    async def check_health(self) -> None:
        """Return if the engine takes requests.

        Raises:
            StepError: it has failed for good.
            RuntimeError: it is shut down.
        """
        self._handle.check_open()
        if (error := self.dead_error) is not None:
            raise error

    async def get_tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if only token ids go in and out."""
        return self.tokenizer

    async def update_params(
        self,
        params: Any,
        mapping: ParamsMapping | None = None,
        in_flight: InFlightPolicy = "keep",
    ) -> None:
        """Swap the weights between two steps: see `Weights.update`."""
        await self.weights.update_async(params, mapping, in_flight)

    async def load_adapter(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
    ) -> None:
        """Load a LoRA adapter: see `Adapters.load`."""
        await self.lora.load_async(name, source, scale=scale, mapping=mapping)

    async def update_adapter(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
        in_flight: InFlightPolicy = "keep",
    ) -> None:
        """Replace a loaded LoRA adapter: see `Adapters.update`."""
        await self.lora.update_async(
            name, source, scale=scale, mapping=mapping, in_flight=in_flight
        )

    async def unload_adapter(self, name: str) -> None:
        """Forget a loaded LoRA adapter: see `Adapters.unload`."""
        self.lora.unload(name)

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; running requests go on with their blocks. True, as in vLLM."""
        await self._handle.driver.call_async(self._handle.loaded.engine.reset_prefix_cache)
        return True

    async def pause(self, mode: PauseMode = "abort", *, refuse: bool = False) -> None:
        """Run no step until `resume`: see `LLM.pause`."""
        check_mode(mode)
        driver = self._handle.driver
        await driver.call_async(lambda: driver.pauses.pause(mode, refuse))

    async def resume(self) -> None:
        """Run steps again after `pause`."""
        await self._handle.driver.call_async(self._handle.driver.pauses.resume)

    async def is_paused(self) -> bool:
        """Whether steps are stopped, by `pause` or by `sleep`."""
        return self._handle.driver.pauses.is_paused

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Release the devices' memory until `wake_up`: see `LLM.sleep`."""
        check_level(level)
        check_mode(mode)
        driver = self._handle.driver
        await driver.call_async(lambda: driver.pauses.sleep(level, mode))

    async def wake_up(self, tags: Sequence[SleepTag] | None = None) -> None:
        """Bring back what sleeps: see `LLM.wake_up`."""
        driver = self._handle.driver
        await driver.call_async(lambda: driver.pauses.wake_up(tags))

    async def is_sleeping(self) -> bool:
        """Whether any part of the engine sleeps."""
        return self._handle.driver.pauses.is_sleeping

    async def get_metrics(self) -> list[Metric]:
        """What the engine counts: vLLM's names, prefixed "jaxinfer:", over all replicas."""
        return await self._handle.driver.call_async(self._handle.metrics)

    async def expert_statistics(self, *, reset: bool = False) -> ExpertStatistics:
        """How tokens were spread over the experts: see `LLM.expert_statistics`."""
        experts = self._handle.loaded.experts
        return await self._handle.driver.call_async(lambda: experts.read(reset=reset))

    async def rebalance_experts(self, load: Any = None) -> RebalancedExperts:
        """Move experts between devices, by their load: see `LLM.rebalance_experts`."""
        return await self._handle.driver.call_async(lambda: rebalance(self._handle, load))

    async def start_profile(self, directory: str | os.PathLike[str]) -> None:
        """Record what host and devices do, until `stop_profile`: see `LLM.start_profile`."""
        handle = self._handle
        await handle.driver.call_async(lambda: handle.profiler.start(directory))

    async def stop_profile(self) -> None:
        """End the recording and write it; RuntimeError if none is running."""
        await self._handle.driver.call_async(self._handle.profiler.stop)

    def shutdown(self) -> None:
        """Abort everything, end the engine's thread, free the device memory. Safe to repeat.

        Returns after the step that runs. `async with` does this without blocking the event loop.
        """
        self._handle.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.shutdown)
