"""The offline API: vLLM's `LLM`, on a model that may be the caller's own arrays."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxinfer.beam_search import BeamSearchOutput, BeamSearchParams
from jaxinfer.capture import Capture, CapturedTokens
from jaxinfer.inputs import tokens_prompt
from jaxinfer.model.adapters.lora_request import AdapterChoice
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.intervention import Intervention, InterventionFunction
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.profiling.host_time import StepTime
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.schedule import ProfileSchedule
from jaxinfer.rollouts.arrays import Rollouts
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.rollouts.rollout import choose_pad, rollout_params, run_rollouts
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.beams.beam_search import search_beams
from jaxinfer.serving.chat_prompts import chat_prompts, truncates_prompts
from jaxinfer.serving.driver.async_stream import stream_request_async
from jaxinfer.serving.driver.blocking_calls import run_requests
from jaxinfer.serving.driver.blocking_stream import stream_request
from jaxinfer.serving.driver.pauses import InFlightPolicy
from jaxinfer.serving.driver.sleep_state import PauseMode, SleepTag
from jaxinfer.serving.engine.metrics import Metric
from jaxinfer.serving.handle_start import start_handle
from jaxinfer.serving.inspection_door import InspectionDoor
from jaxinfer.serving.memory_handover import MemoryHandover
from jaxinfer.serving.pooling.task import ONLY_POOLS
from jaxinfer.serving.profiles import Profiles
from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor

Captures = bool | CapturedTokens | Sequence[bool | CapturedTokens]


class LLM(InspectionDoor):
    """A model that generates, chats and scores.

    All methods may be called from several threads; requests of all of them share the batch, which a
    thread of the engine's own runs.

    >>> llm = LLM("Qwen/Qwen3-0.6B")                                        # doctest: +SKIP
    >>> llm.generate("Once upon a time")[0].outputs[0].text                 # doctest: +SKIP

    Args:
        model: a directory, a hub id or "bundled-experts"; None is the bundled model, or `params`.
        params: the caller's own parameters, Hugging Face's names in a tree of any kind
            (dictionaries, NNX, Linen, Equinox); arrays that are placed as the steps need them are
            used without a copy.
        mapping: of `params` with other names or shapes; the engine gets arrays of its own.
        config: the model's shape, with `params`.
        tokenizer: a `Tokenizer`, a directory or hub id; None takes the model's own. With `params`,
            None means that only token ids go in and out.
        mesh: devices to run on; None uses the mesh that `params` live on, or makes one of
            `data_parallel_size` x `context_parallel_size` x `tensor_parallel_size` devices.
        rules: which axis of the mesh splits what, and which one has a replica at each index.
        logits_processor: `(logits, state) -> logits`, compiled into the step; see
            `jaxinfer.serving.sampling.sampler`.
        sampler: `(logits, state, keys) -> token ids`, replaces the draw.
        capture: the activations that are kept for requests that ask for them; see `Capture`.
        intervention: changes the residual stream of requests that ask for it; see `Intervention`,
            which a function alone becomes.
        coordinator_address: "HOST:PORT" of process 0 where several processes run one engine, or
            "auto" under Slurm, Kubernetes or MPI. Every process makes the same LLM; process 0
            takes the requests and the others call `follow`. None takes the environment's
            JAX_COORDINATOR_ADDRESS, and without that there is one process, unless
            `jax.distributed.initialize` was called before.
        num_processes: how many there are; None takes JAX_NUM_PROCESSES.
        process_id: which one this is; None takes JAX_PROCESS_ID.
        engine_args: fields of `EngineConfig`.

    Attributes:
        profiles: records what the engine does.
        weights: swaps the weights.
        handover: pauses the engine, and gives its devices' memory to others.
        judge: chooses between labels, ranks documents and scores pairs of texts.

    Raises:
        TypeError: an unknown keyword; names its nearest valid neighbour.
        ValueError: an argument out of range or in contradiction to another.
        ModelLoadError: the model can't be read; one line that names the file.
        CapacityError: the KV cache can't hold one full-length request.
        DistributedError: the processes were started differently, or another one failed.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        params: Any = None,
        mapping: ParamsMapping | None = None,
        config: ModelConfig | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        mesh: Mesh | None = None,
        rules: ShardingRules | None = None,
        logits_processor: LogitsProcessor | None = None,
        sampler: CustomSampler | None = None,
        capture: Capture | None = None,
        intervention: Intervention | InterventionFunction | None = None,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        **engine_args: Any,
    ):
        handle = start_handle(
            "LLM",
            model,
            params=params,
            mapping=mapping,
            config=config,
            tokenizer=tokenizer,
            mesh=mesh,
            rules=rules,
            logits_processor=logits_processor,
            sampler=sampler,
            capture=capture,
            intervention=intervention,
            coordinator_address=coordinator_address,
            num_processes=num_processes,
            process_id=process_id,
            **engine_args,
        )
        super().__init__(handle)
        self._loaded = handle.loaded
        self._arguments = handle.arguments
        self.profiles = Profiles(handle)
        self.handover = MemoryHandover(handle)

    def get_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, by vLLM's name for it."""
        return self.tokenizer

    @property
    def follows(self) -> bool:
        """Whether this is one of several processes and not process 0: all it can do is `follow`."""
        return self._handle.following_engine is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._handle.is_closed

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        lora_request: AdapterChoice | Sequence[AdapterChoice] = None,
        priority: int | Sequence[int] | None = None,
        profile: str | os.PathLike[str] | None = None,
        capture: Captures = False,
        intervene: bool | Sequence[bool] = False,
    ) -> list[RequestOutput]:
        """Complete prompts; returns when all are done.

        Args:
            prompts: a string, a list of token ids, a dictionary with "prompt" or
                "prompt_token_ids" (and perhaps "cache_salt"), or a list of these.
            sampling_params: one for all or one for each; None uses the model's defaults.
            use_tqdm: show a progress bar on stderr; or what makes one, as `tqdm.tqdm` does.
            lora_request: a `LoRARequest`, or the name of a loaded adapter, for all prompts; or a
                list with one of these, or None, for each. It needs `enable_lora`.
            priority: an integer for all prompts, or one for each; lower ones run earlier, with
                `scheduling_policy="priority"`. None is 0 for all.
            profile: a directory that takes a profile of the first steps and its report (see
                `profile`, which also takes other steps).
            capture: whether outputs have the engine's captured activations, or of which tokens; one
                for all prompts, or one for each.
            intervene: whether the engine's intervention changes them; one for all, or one for each.

        Returns:
            One output for each prompt, in the order of the prompts. One that failed says why in
            its `error`; a warning tells of the first.

        Raises:
            TypeError: something is not a prompt; names its index. Nothing has been run.
            ValueError: a prompt can't be run, or the numbers differ. Nothing has been run.
            CapacityError: the activations may be more than host memory holds; nothing has been run.
            KeyboardInterrupt: Ctrl-C; the requests of this call are aborted, the engine goes on.
        """
        driver = self._handle.driver
        requests = self._arguments.several(prompts, sampling_params, priority, lora_request)
        requests = self._handle.loaded.inspection.requests(requests, capture, intervene)
        with self.profiles.record(profile) if profile is not None else contextlib.nullcontext():
            return run_requests(driver, requests, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        lora_request: AdapterChoice | Sequence[AdapterChoice] = None,
        priority: int | Sequence[int] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        capture: Captures = False,
        intervene: bool | Sequence[bool] = False,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, through the model's chat template.

        Args:
            messages: a conversation (dictionaries with `role` and `content`) or a list of them.
            sampling_params: as in `generate`.
            use_tqdm: as in `generate`.
            lora_request: as in `generate`.
            priority: as in `generate`.
            add_generation_prompt: end the prompt with the opening of an answer.
            continue_final_message: have the last message continued instead.
            enable_thinking: whether the model may think first; None is the template's default.
            tools: JSON schemas of functions that the model may call.
            chat_template: the name of one of the model's templates, or a template's text to use
                in place of them.
            chat_template_kwargs: further names for the template; an argument above that is named
                here, too, has the value that it has here.
            capture: as in `generate`.
            intervene: as in `generate`.

        Raises:
            TypeError: messages or tools are not plain JSON data.
            ValueError: the template refuses or fails, or as in `generate`.
        """
        self._handle.check_open()
        if self.engine_config.runner == "pooling":
            raise ValueError(ONLY_POOLS)
        prompts = chat_prompts(
            messages,
            self._loaded.reader,
            may_be_longer=truncates_prompts(sampling_params),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            enable_thinking=enable_thinking,
            tools=tools,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
        )
        options: dict[str, Any] = {"capture": capture, "intervene": intervene}
        options |= {"priority": priority, "lora_request": lora_request}
        return self.generate(prompts, sampling_params, use_tqdm, **options)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        *,
        lora_request: AdapterChoice = None,
        use_tqdm: bool | Callable[..., Any] = False,
    ) -> list[BeamSearchOutput]:
        """The outputs of prompts that beam search finds likeliest.

        Each step asks for one token after every running beam of every prompt. With prefix caching
        it computes the last block of each alone.

        Args:
            prompts: as in `generate`.
            params: of the search.
            lora_request: of all prompts, as in `generate`.
            use_tqdm: as in `generate`; it counts steps.

        Returns:
            One output for each prompt, in order.

        Raises:
            TypeError, ValueError: as in `generate`; `max_tokens` do not fit behind a prompt, or
                `beam_width` needs more log-probabilities than `max_logprobs`. Nothing has been run.
            StepError: a request of a step failed.
        """
        self._handle.check_open()
        if self.engine_config.runner == "pooling":
            raise ValueError(ONLY_POOLS)
        adapter: Any = self._arguments.adapters.find(lora_request)  # once for all steps
        return search_beams(
            functools.partial(self.generate, use_tqdm=False, lora_request=adapter),
            prompts,
            params,
            reader=self._loaded.reader,
            end_token_ids=self._handle.end_token_ids,
            use_tqdm=use_tqdm,
        )

    def rollout(
        self,
        prompts: Any,
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        pad_to: tuple[int, int] | None = None,
        pad_token_id: int | None = None,
        device: Any = None,
        lora_request: AdapterChoice = None,
        use_tqdm: bool | Callable[..., Any] = False,
        allow_errors: bool = False,
    ) -> Rollouts:
        """Complete prompts, for a trainer: tokens and log-probabilities as arrays, no text.

        Args:
            prompts: as in `generate`.
            params: one for all; None uses the model's defaults. Its `logprobs` has no effect.
            n: completions of each prompt; None is that of `params`.
            pad_to: widths of prompts and of completions; None takes the longest of each.
            pad_token_id: None takes one that ends nothing, and no token of text.
            device: a `jax.Device` or sharding to put the arrays on; None leaves them to NumPy.
            lora_request: of all prompts, as in `generate`.
            use_tqdm: as in `generate`.
            allow_errors: return although prompts failed. Their rows have no tokens, and the finish
                reason `FinishCode.ERROR`.

        Raises:
            TypeError, ValueError: as in `generate`; `pad_token_id` ends completions, or something
                may not fit `pad_to`. Nothing has been run.
            StepError: prompts failed; tells how many, and why the first did.
        """
        self._handle.check_open()
        (given,) = self._arguments.params(params, 1)
        own = rollout_params(given, n)
        read = [request.prompt for request in self._arguments.several(prompts, own)]
        ends = self._handle.end_token_ids.union(own.stop_token_ids or ())
        size = self.model_config.vocab_size
        return run_rollouts(
            functools.partial(self.generate, use_tqdm=use_tqdm, lora_request=lora_request),
            [tokens_prompt(each.token_ids, each.cache_salt) for each in read],
            own,
            pad_token_id=choose_pad(pad_token_id, ends, size, self.tokenizer),
            pad_to=pad_to,
            device=device,
            allow_errors=allow_errors,
        )

    def stream(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: AdapterChoice = None,
        priority: int = 0,
    ) -> Iterator[RequestOutput]:
        """Complete one prompt piece by piece.

        Args:
            prompt: as in `generate`, but one.
            sampling_params: None uses the model's defaults.
            lora_request: as in `generate`.
            priority: as in `generate`.

        Returns:
            An iterator of outputs that each hold the new part only, for any `output_kind`: texts
            and token ids add up to exactly what `generate` returns. Closing it aborts the request.

        Raises:
            TypeError, ValueError: as in `generate`, at once.
        """
        driver = self._handle.driver
        request = self._arguments.one(prompt, sampling_params, priority, lora_request=lora_request)
        return stream_request(driver, request, keeps=self)

    def astream(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: AdapterChoice = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """`stream` for `async for`, from any number of tasks at once.

        Cancelling the task, or leaving the iteration, aborts the request.

        Args:
            prompt: as in `stream`.
            sampling_params: as in `stream`.
            request_id: a label for the outputs; others may bear the same. None makes one.
            lora_request: as in `generate`.
            priority: as in `generate`.

        Raises:
            TypeError, ValueError: as in `generate`, at once; `RuntimeError` when the LLM is closed,
                in the iteration.
        """
        driver = self._handle.driver
        request = self._arguments.one(
            prompt, sampling_params, priority, request_id or "", lora_request=lora_request
        )
        return stream_request_async(driver, dataclasses.replace(request, kind="delta"), keeps=self)

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: AdapterChoice = None,
        priority: int = 0,
    ) -> None:
        """Enqueue a request for callers of `step`; its other arguments are as in `generate`.

        Raises:
            TypeError, ValueError: as in `generate`, or the id is in use.
        """
        driver = self._handle.driver
        if not isinstance(request_id, str) or not request_id:
            raise TypeError(f"request_id must be a string that is not empty, got {request_id!r}")
        request = self._arguments.one(
            prompt, sampling_params, priority, request_id, lora_request=lora_request
        )
        driver.by_hand.add(request)

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests of `add_request`; ids that are unknown or finished are ignored.

        Returns at once: they end before the next step. A stream ends when its iteration is left.
        """
        labels = [request_id] if isinstance(request_id, str) else request_id
        self._handle.driver.by_hand.abort(labels)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do or to return."""
        return self._handle.driver.by_hand.has_unfinished

    def step(self) -> list[RequestOutput]:
        """Advance all requests; the outputs of `add_request`'s, as their `output_kind` says.

        All text so far, unless it says otherwise.
        """
        return self._handle.driver.by_hand.step()

    def load_adapter(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
    ) -> None:
        """Load a LoRA adapter, for requests to name: see `Adapters.load`."""
        self.lora.load(name, source, scale=scale, mapping=mapping)

    def update_adapter(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
        in_flight: InFlightPolicy = "keep",
    ) -> None:
        """Replace a loaded LoRA adapter: see `Adapters.update`."""
        self.lora.update(name, source, scale=scale, mapping=mapping, in_flight=in_flight)

    def unload_adapter(self, name: str) -> None:
        """Forget a loaded LoRA adapter: see `Adapters.unload`."""
        self.lora.unload(name)

    def update_params(
        self, params: Any, mapping: ParamsMapping | None = None, in_flight: InFlightPolicy = "keep"
    ) -> None:
        """Swap the weights between two steps: see `Weights.update`."""
        self.weights.update(params, mapping, in_flight)

    def pause(self, mode: PauseMode = "abort", *, refuse: bool = False) -> None:
        """Run no step until `resume`: see `MemoryHandover.pause`."""
        self.handover.pause(mode, refuse=refuse)

    def resume(self) -> None:
        """Run steps again after `pause`."""
        self.handover.resume()

    @property
    def is_paused(self) -> bool:
        """Whether steps are stopped, by `pause` or by `sleep`."""
        return self.handover.is_paused

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Release the devices' memory until `wake_up`: see `MemoryHandover.sleep`."""
        self.handover.sleep(level, mode)

    def wake_up(self, tags: Sequence[SleepTag] | None = None) -> None:
        """Bring back what sleeps: see `MemoryHandover.wake_up`."""
        self.handover.wake_up(tags)

    @property
    def is_sleeping(self) -> bool:
        """Whether any part of the engine sleeps."""
        return self.handover.is_sleeping

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; running requests go on with their blocks. True, as in vLLM."""
        self._handle.driver.call(self._loaded.engine.reset_prefix_cache)
        return True

    def get_metrics(self) -> list[Metric]:
        """What the engine counts: vLLM's names, prefixed "jaxinfer:", over all replicas."""
        return self._handle.driver.call(self._handle.metrics)

    def start_profile(
        self, directory: str | os.PathLike[str], schedule: ProfileSchedule | None = None
    ) -> None:
        """Record what host and devices do, until `stop_profile`: see `Profiles.start`."""
        self.profiles.start(directory, schedule)

    def stop_profile(self) -> ProfileReport | None:
        """End the recording and write it: see `Profiles.stop`."""
        return self.profiles.stop()

    def profile(
        self, directory: str | os.PathLike[str], schedule: ProfileSchedule | None = None
    ) -> AbstractContextManager[None]:
        """Record the steps of a ``with`` block: see `Profiles.record`."""
        return self.profiles.record(directory, schedule)

    def time_steps(self) -> AbstractContextManager[list[StepTime]]:
        """Time the steps of a ``with`` block: see `Profiles.time_steps`."""
        return self.profiles.time_steps()

    def memory_report(self) -> MemoryReport:
        """What holds the devices' memory: see `Profiles.memory`."""
        return self.profiles.memory()

    def follow(
        self, new_params: Callable[[], Any] | None = None, mapping: ParamsMapping | None = None
    ) -> None:
        """Do this process's part of what process 0 is asked for, until it closes its LLM.

        Args:
            new_params: called when process 0 calls `update_params`, which waits for it; returns the
                new weights as this process holds them. Without it, such an update is refused.
            mapping: of these; the same as process 0 gives.

        Raises:
            RuntimeError: this is process 0, or the only one.
            DistributedError: another process has failed, or new weights differ between processes.
            KeyboardInterrupt: Ctrl-C; the other processes end too.
        """
        self._handle.check_open()
        if (engine := self._handle.following_engine) is None:
            raise RuntimeError("follow() is for processes other than 0: this one takes requests")
        with self._handle.settings.held():
            engine.follow(self.weights.maker(new_params, mapping))

    def close(self) -> None:
        """Abort everything, end the engine's thread, free the device memory. Safe to repeat."""
        self._handle.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
