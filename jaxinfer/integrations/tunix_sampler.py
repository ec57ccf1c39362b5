"""jaxinfer as the `Sampler` of tunix's rollout workers: ``RolloutWorker(sampler=...)``."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.errors import StepError
from jaxinfer.integrations.tunix_settings import completion_logprobs, request_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.optional import import_optional
from jaxinfer.outputs import RequestOutput
from jaxinfer.rollouts.mapping import ParamsMapping, check_mapping
from jaxinfer.serving.async_llm import AsyncLLM
from jaxinfer.serving.engine.metrics import Gauge

# Its own requirements would replace JAX by one that is too old for jaxinfer.
_INSTALL = "google-tunix==0.1.7' && pip install --no-deps 'git+https://github.com/google/tunix"
protocol = import_optional(
    "tunix.experimental.rollout.sampler", needed_by=__name__, install=_INSTALL
)

_DEFAULTS = {"logprobs_mode": "temperature_logprobs", "show_progress": False}


class JaxinferSampler:
    """A `Sampler` of tunix's `tunix.experimental`, which google-tunix 0.1.7 does not have yet.

    End tokens stay in the tokens, with their log-probabilities, which are of
    ``log_softmax(logits / temperature)`` without truncation. Weights come from a trainer in the
    same process: each sync is one program that writes into the memory of the last ones.

    Args:
        model: a directory or a hub id; None is the bundled model, or `params` of the options.
        weights: returns the trainer's tree, for syncs whose request has none.
        mapping: from the trainer's tree to the engine's, or what makes one of the model's config,
            such as `ParamsMapping.tunix_qwen3`, tunix's own Qwen3; None for Hugging Face's names.
        engine_options: keywords of `AsyncLLM`.

    Attributes:
        llm: the `AsyncLLM`; None before `initialize`.

    Raises:
        TypeError: `mapping` is none.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        weights: Callable[[], Any] | None = None,
        mapping: ParamsMapping
        | Callable[[ModelConfig], ParamsMapping]
        | None = ParamsMapping.tunix_qwen3,
        **engine_options: Any,
    ) -> None:
        if not callable(mapping):
            check_mapping(mapping)
        self.llm: AsyncLLM | None = None
        self._model, self._options = model, _DEFAULTS | engine_options
        self._weights, self._mapping = weights, mapping
        self._policy_version = 0

    def initialize(self) -> None:
        """Start the engine, unless it was started; blocks, and raises as `AsyncLLM`."""
        if self.llm is None:
            self.llm = AsyncLLM(self._model, **self._options)

    async def start(self, **_: Any) -> None:
        """Start the engine, unless it was started, without blocking the event loop."""
        await asyncio.to_thread(self.initialize)

    async def stop(self, **_: Any) -> None:
        """End the engine for good and free its memory; requests that run are cancelled."""
        if self.llm is not None:
            await asyncio.to_thread(self.llm.shutdown)

    async def pause(self, **_: Any) -> None:
        """Run no step until `resume`; requests wait, and keep their tokens."""
        await self._engine().pause("keep")

    async def resume(self, **_: Any) -> None:
        """Run steps again after `pause`."""
        await self._engine().resume()

    async def get_mesh(self, **_: Any) -> Any:
        """The mesh of the engine's options; None if there was none."""
        return self._options.get("mesh")

    async def sample(self, sampling_requests: Any, **kwargs: Any) -> Any:
        """Complete prompts: texts, token ids, or conversations for the model's chat template.

        Args:
            sampling_requests: a `SamplingRequest`, or a list or tuple of them. With a `seed`, equal
                requests draw differently if their `request_id` or place in the sequence differs;
                the same call draws the same.
            kwargs: `return_logprobs`, for all; others say what the requests say.

        Returns:
            A `SamplingResponse`, or a list of them; `metadata` has the `weight_version`, the number
            of syncs before the last token.

        Raises:
            TypeError, ValueError: no prompt, a setting out of range, or one that the engine has
                not; nothing has been run.
            StepError: a completion failed.
            RuntimeError: the engine was not started, or was stopped.
        """
        several = isinstance(sampling_requests, list | tuple)
        requests = list(sampling_requests) if several else [sampling_requests]
        streams = [self._stream(request, i, kwargs) for i, request in enumerate(requests)]
        tasks = [asyncio.ensure_future(_last(stream)) for stream in streams]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # those that a failure left running
                task.cancel()
        responses = [_response(*pair) for pair in zip(requests, outputs, strict=True)]
        return responses if several else responses[0]

    async def bind_weight_sync(self, **_: Any) -> None:
        """Nothing: no transport has to be bound."""

    async def get_weight_sync_metadata(self, **_: Any) -> Any:
        """NotImplementedError: weights are taken within the process, and need no addresses."""
        raise NotImplementedError(
            "JaxinferSampler takes weights within its process, not by a transport between "
            "processes; call weight_sync with the trainer's tree, or give it weights=..."
        )

    async def pre_weight_sync(self, sync_request: Any = None, **_: Any) -> None:
        """Nothing: requests that run end under the old weights, in `weight_sync`."""

    async def weight_sync(self, sync_request: Any = None, **_: Any) -> int:
        """Take the trainer's weights; requests that run end first, and later ones wait.

        Args:
            sync_request: a trainer's tree, an object with one as `weights`, or a
                `WeightSyncRequest` or None, with the tree of the constructor's `weights`.

        Returns:
            The request's policy version; without one, one more than the last.

        Raises:
            ValueError, TypeError: there is no tree, or as `AsyncLLM.update_params`; the weights are
                as they were.
        """
        llm, mapping = self._engine(), self._mapping
        if mapping is not None and not isinstance(mapping, ParamsMapping):
            mapping = mapping(llm.model_config)
        await llm.update_params(self._tree(sync_request), mapping, in_flight="wait")
        version = getattr(sync_request, "policy_version", 0)
        self._policy_version = version or self._policy_version + 1
        return self._policy_version

    async def post_weight_sync(self, sync_request: Any = None, **_: Any) -> None:
        """Nothing: the weights are in use since `weight_sync`."""

    async def get_transfer_status(self, req_id: Any, **_: Any) -> str:
        """ "SUCCESS": `weight_sync` returns when its transfer is over."""
        return "SUCCESS"

    async def migrate_kv_cache(
        self, source_server_id: str, target_server_id: str, token_ids: list[int], **_: Any
    ) -> bool:
        """False: keys and values stay in their engine."""
        return False

    async def get_load_info(self, **_: Any) -> Any:
        """The engine's requests and the share of its KV cache in use, as tunix's `LoadInfo`."""
        metrics = await self._engine().get_metrics()
        gauges = {each.name: each.value for each in metrics if isinstance(each, Gauge)}
        names = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
        return protocol.LoadInfo(**{name: gauges[f"jaxinfer:{name}"] for name in names})

    def _engine(self) -> AsyncLLM:
        if self.llm is None:
            raise RuntimeError("JaxinferSampler has no engine yet: call initialize() first")
        return self.llm

    def _stream(
        self, request: Any, place: int, kwargs: dict[str, Any]
    ) -> AsyncGenerator[RequestOutput]:
        given = getattr(request, "sampling_params", None) or protocol.SamplingParams()
        label = getattr(request, "request_id", "")
        with_logprobs = given.return_logprobs or bool(kwargs.get("return_logprobs"))
        params = request_params(given, label, place, with_logprobs=with_logprobs)
        prompt = self._prompt(getattr(request, "prompt", request))
        return self._engine().generate(prompt, params, label or None)

    def _prompt(self, given: Any) -> Any:
        """A prompt as `AsyncLLM.generate` takes it."""
        if isinstance(given, str):
            return given
        messages = [given] if isinstance(given, dict) else given
        if not (isinstance(messages, Sequence) and messages and isinstance(messages[0], dict)):
            return np.asarray(given).reshape(-1).tolist()
        tokenizer = self._engine().tokenizer
        if tokenizer is None:
            raise ValueError("a conversation needs a tokenizer; give JaxinferSampler tokenizer=...")
        return tokenizer.apply_chat_template(messages, tokenize=True)

    def _tree(self, sync_request: Any) -> Any:
        """The trainer's parameters of one sync."""
        tree = getattr(sync_request, "weights", sync_request)
        if tree is not None and not isinstance(tree, protocol.WeightSyncRequest):
            return tree
        if self._weights is None:
            raise ValueError(
                "the sync request has no weights; give the trainer's tree in its place, or "
                "JaxinferSampler(weights=...), a function that returns it"
            )
        return self._weights()


async def _last(stream: AsyncGenerator[RequestOutput]) -> RequestOutput:
    *_, output = [each async for each in stream]
    if output.error is not None:
        raise StepError(f"a completion failed: {output.error}")
    return output


def _response(request: Any, output: RequestOutput) -> Any:
    (completion,) = output.outputs
    reason = "cancelled" if completion.finish_reason == "abort" else completion.finish_reason
    return protocol.SamplingResponse(
        request_id=getattr(request, "request_id", ""),
        text=completion.text,
        prompt_token_ids=np.asarray(output.prompt_token_ids, np.int32),
        token_ids=np.asarray(completion.token_ids, np.int32),
        logprobs=None if completion.logprobs is None else completion_logprobs(completion),
        finish_reason=reason,
        metadata={"weight_version": output.weight_version},
    )
