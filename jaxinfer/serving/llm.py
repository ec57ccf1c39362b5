"""The offline API: vLLM's `LLM`, on a model that may be the caller's own arrays."""

import functools
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput, ScoreOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.async_stream import stream_request_async
from jaxinfer.serving.blocking_calls import run_requests, stream_request
from jaxinfer.serving.call_arguments import CallArguments
from jaxinfer.serving.chat_prompts import chat_prompts, truncates_prompts
from jaxinfer.serving.distributed.engines import FollowingEngine
from jaxinfer.serving.distributed.start import start_processes
from jaxinfer.serving.driver import EngineDriver, wait_for_closing
from jaxinfer.serving.loading import ModelSource, check_given, load_engine
from jaxinfer.serving.memory import return_freed_memory
from jaxinfer.serving.new_request import NewRequest
from jaxinfer.serving.plan import StartupReport
from jaxinfer.serving.sampler import CustomSampler, LogitsProcessor
from jaxinfer.serving.scoring import read_score_inputs, score_output
from jaxinfer.serving.start_up import StartUpTimes

_OWN_KEYWORDS = (
    *("params", "config", "mesh", "rules", "logits_processor", "sampler"),
    *("coordinator_address", "num_processes", "process_id"),
)


class LLM:
    """A model that generates, chats and scores.

    All methods may be called from several threads; requests of all of them share the batch, which a
    thread of the engine's own runs.

    >>> llm = LLM("Qwen/Qwen3-0.6B")                                        # doctest: +SKIP
    >>> llm.generate("Once upon a time")[0].outputs[0].text                 # doctest: +SKIP

    Args:
        model: a directory or hub id; None is the bundled model, or `params`.
        params: the caller's own parameters, Hugging Face's names in nested dictionaries; arrays
            that are placed as the steps need them are used without a copy.
        config: the model's shape, with `params`.
        tokenizer: a `Tokenizer`, a directory or hub id; None takes the model's own. With `params`,
            None means that only token ids go in and out.
        mesh: devices to run on; None uses the mesh that `params` live on, or makes one of
            `data_parallel_size` x `tensor_parallel_size` devices.
        rules: which axis of the mesh splits what, and which one has a replica at each index.
        logits_processor: `(logits, state) -> logits`, compiled into the step; see
            `jaxinfer.serving.sampler`.
        sampler: `(logits, state, keys) -> token ids`, replaces the draw.
        coordinator_address: "HOST:PORT" of process 0 where several processes run one engine, or
            "auto" under Slurm, Kubernetes or MPI. Every process makes the same LLM; process 0
            takes the requests and the others call `follow`. None takes the environment's
            JAX_COORDINATOR_ADDRESS, and without that there is one process, unless
            `jax.distributed.initialize` was called before.
        num_processes: how many there are; None takes JAX_NUM_PROCESSES.
        process_id: which one this is; None takes JAX_PROCESS_ID.
        engine_args: fields of `EngineConfig`.

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
        params: Mapping[str, Any] | None = None,
        config: ModelConfig | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        mesh: Mesh | None = None,
        rules: ShardingRules | None = None,
        logits_processor: LogitsProcessor | None = None,
        sampler: CustomSampler | None = None,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        **engine_args: Any,
    ):
        check_given(model, params, config, mesh, rules)
        own = isinstance(tokenizer, Tokenizer)
        if own and engine_args.get("skip_tokenizer_init"):
            raise ValueError("skip_tokenizer_init and tokenizer exclude each other; leave one out")
        keywords = {
            "model": None if model is None else str(model),
            "tokenizer": None if tokenizer is None or own else str(tokenizer),
            **engine_args,
        }
        self.engine_config = EngineConfig.from_keywords(keywords, owner="LLM", also=_OWN_KEYWORDS)
        wait_for_closing()  # their memory is this engine's
        start_processes(coordinator_address, num_processes, process_id)
        loaded = load_engine(
            self.engine_config,
            ModelSource(
                params=params,
                model_config=config,
                tokenizer=tokenizer if isinstance(tokenizer, Tokenizer) else None,
                mesh=mesh,
                rules=rules or ShardingRules(),
                logits_processor=logits_processor,
                sampler=sampler,
            ),
        )
        self._loaded = loaded
        self._engine = loaded.engine
        self._reader = loaded.reader
        self._arguments = CallArguments(self.engine_config, loaded)
        close_tokenizer = None if own or loaded.tokenizer is None else loaded.tokenizer.close
        self._driver = None
        if self.follows:
            self._finalizer = weakref.finalize(self, _close, loaded.engine.close, close_tokenizer)
            return
        release = functools.partial(_close, close_tokenizer, return_freed_memory)
        self._driver = EngineDriver(loaded.engine, release=release)
        # A finalizer may run in any thread at any point, so it only leaves a message. At the end of
        # Python the driver closes itself.
        self._finalizer = weakref.finalize(self, self._driver.close_soon)
        self._finalizer.atexit = False

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if only token ids go in and out."""
        return self._loaded.tokenizer

    def get_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, by vLLM's name for it."""
        return self.tokenizer

    @property
    def model_config(self) -> ModelConfig:
        """The model's shape."""
        return self._loaded.model_config

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self._reader.max_model_len

    @property
    def report(self) -> StartupReport:
        """What the engine decided at start-up: blocks, attention backend and why."""
        return self._loaded.report

    @property
    def start_up(self) -> StartUpTimes:
        """Where the time of the engine's start went."""
        return self._loaded.start_up

    @property
    def num_kv_blocks(self) -> int:
        """Blocks of the KV cache, each replica's reserved block 0 included."""
        return self._loaded.report.num_kv_blocks

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache on each device."""
        return self._loaded.report.kv_bytes

    @property
    def num_compilations(self) -> int:
        """Programs that were compiled since this engine was made."""
        # The first replica counts for all: what XLA compiles, it does for the process.
        return self._loaded.replicas[0].runner.num_compilations

    @property
    def compile_seconds(self) -> float:
        """Seconds that steps have waited for programs to be compiled at their first use."""
        return sum(r.runner.seconds_waited_for_programs for r in self._loaded.replicas)

    @property
    def follows(self) -> bool:
        """Whether this is one of several processes and not process 0: all it can do is `follow`."""
        return isinstance(self._engine, FollowingEngine)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def get_default_sampling_params(self) -> SamplingParams:
        """What a call without sampling parameters uses, from `generation_config.json`; a copy."""
        return self._loaded.default_params.clone()

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts; returns when all are done.

        Args:
            prompts: a string, a list of token ids, a dictionary with "prompt" or
                "prompt_token_ids" (and perhaps "cache_salt"), or a list of these.
            sampling_params: one for all or one for each; None uses the model's defaults.
            use_tqdm: show a progress bar on stderr; or what makes one, as `tqdm.tqdm` does.
            priority: an integer for each prompt; lower ones run earlier, with
                `scheduling_policy="priority"`. None is 0 for all.

        Returns:
            One output for each prompt, in the order of the prompts. One that failed says why in
            its `error`; a warning tells of the first.

        Raises:
            TypeError: something is not a prompt; names its index. Nothing has been run.
            ValueError: a prompt can't be run, or the numbers differ. Nothing has been run.
            KeyboardInterrupt: Ctrl-C; the requests of this call are aborted, the engine goes on.
        """
        driver = self._open_driver
        checked, params = self._arguments.several(prompts, sampling_params)
        priorities = self._arguments.priorities(priority, len(checked))
        return run_requests(driver, checked, params, use_tqdm=use_tqdm, priorities=priorities)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        priority: Sequence[int] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, through the model's chat template.

        Args:
            messages: a conversation (dictionaries with `role` and `content`) or a list of them.
            sampling_params: as in `generate`.
            use_tqdm: as in `generate`.
            priority: as in `generate`.
            add_generation_prompt: end the prompt with the opening of an answer.
            continue_final_message: have the last message continued instead.
            enable_thinking: whether the model may think first; None is the template's default.
            tools: JSON schemas of functions that the model may call.
            chat_template: a template's text to use in place of the model's.
            chat_template_kwargs: further names for the template; an argument above that is named
                here, too, has the value that it has here.

        Raises:
            TypeError: messages or tools are not plain JSON data.
            ValueError: the template refuses or fails, or as in `generate`.
        """
        self._check_open()
        prompts = chat_prompts(
            messages,
            self._reader,
            may_be_longer=truncates_prompts(sampling_params),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            enable_thinking=enable_thinking,
            tools=tools,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
        )
        return self.generate(prompts, sampling_params, use_tqdm, priority=priority)

    def stream(
        self, prompt: Any, sampling_params: SamplingParams | None = None, *, priority: int = 0
    ) -> Iterator[RequestOutput]:
        """Complete one prompt piece by piece.

        Args:
            prompt: as in `generate`, but one.
            sampling_params: None uses the model's defaults.
            priority: as in `generate`.

        Returns:
            An iterator of outputs that hold what is new: texts and token ids add up to exactly
            what `generate` returns. Closing it aborts the request.

        Raises:
            TypeError, ValueError: as in `generate`, at once.
        """
        driver = self._open_driver
        checked, params = self._arguments.one(prompt, sampling_params)
        priority = self._arguments.priority(priority)
        return stream_request(driver, checked, params, priority=priority, keeps=self)

    def astream(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """`stream` for `async for`, from any number of tasks at once.

        Cancelling the task, or leaving the iteration, aborts the request.

        Args:
            prompt: as in `stream`.
            sampling_params: as in `stream`.
            request_id: a label for the outputs; others may bear the same. None makes one.
            priority: as in `generate`.

        Raises:
            TypeError, ValueError: as in `generate`, at once; `RuntimeError` when the LLM is closed,
                in the iteration.
        """
        driver = self._open_driver
        checked, params = self._arguments.one(prompt, sampling_params)
        priority = self._arguments.priority(priority)
        return stream_request_async(
            driver, checked, params, request_id, priority=priority, keeps=self
        )

    def score(
        self, inputs: Any, *others: Any, use_tqdm: bool | Callable[..., Any] = False
    ) -> list[ScoreOutput]:
        """Log-probabilities of given tokens, at temperature 1.

        Args:
            inputs: a prompt as in `generate` (every token but the first is scored), a tuple
                (context, continuation) of strings or token ids (the continuation is scored), or a
                list of these.
            others: nothing may follow by position.
            use_tqdm: as in `generate`.

        Returns:
            One output for each input, in order.

        Raises:
            TypeError, ValueError: as in `generate`.
            StepError: the model's output for an input was not finite.
        """
        driver = self._open_driver
        if others:
            raise TypeError(
                "score() takes one argument beside use_tqdm=...; write score((context, "
                "continuation)) to score a continuation, score([text, text]) for several texts"
            )
        prompts, starts = read_score_inputs(inputs, self._reader)
        outputs = run_requests(
            driver,
            prompts,
            [SamplingParams(prompt_logprobs=0)] * len(prompts),
            use_tqdm=use_tqdm,
            prefill_only=True,
        )
        return [score_output(o, start) for o, start in zip(outputs, starts, strict=True)]

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> None:
        """Enqueue a request for callers of `step`; `priority` is as in `generate`.

        Raises:
            TypeError, ValueError: as in `generate`, or the id is in use.
        """
        driver = self._open_driver
        if not isinstance(request_id, str) or not request_id:
            raise TypeError(f"request_id must be a string that is not empty, got {request_id!r}")
        checked, params = self._arguments.one(prompt, sampling_params)
        driver.add_by_hand(
            NewRequest(
                key=driver.new_key(),
                label=request_id,
                prompt=checked,
                params=params,
                kind="cumulative",
                priority=self._arguments.priority(priority),
            )
        )

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """End requests of `add_request`; ids that are unknown or finished are ignored.

        Returns at once: they end before the next step. A stream ends when its iteration is left.
        """
        labels = [request_id] if isinstance(request_id, str) else request_id
        self._open_driver.abort_by_hand(labels)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do or to return."""
        return self._open_driver.has_unfinished

    def step(self) -> list[RequestOutput]:
        """Advance all requests; outputs of those from `add_request`, all their text so far."""
        return self._open_driver.step()

    def update_params(self, params: Mapping[str, Any]) -> None:
        """Swap the weights between two steps; arrays that lie right are used without a copy.

        Running requests go on with the new weights and the keys and values they have. The prefix
        cache forgets everything.

        Raises:
            ValueError: names the first leaf whose path, shape, dtype or sharding differs.
            TypeError: a leaf is no array.
        """
        self._open_driver.call(lambda: self._engine.update_params(params))

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; running requests go on with their blocks. True, as in vLLM."""
        self._open_driver.call(self._engine.reset_prefix_cache)
        return True

    def follow(self, new_params: Callable[[], Mapping[str, Any]] | None = None) -> None:
        """Do this process's part of what process 0 is asked for, until it closes its LLM.

        Args:
            new_params: called when process 0 calls `update_params`; returns the new weights as
                this process holds them. Without it, such an update is refused.

        Raises:
            RuntimeError: this is process 0, or the only one.
            DistributedError: another process has failed.
            KeyboardInterrupt: Ctrl-C; the other processes end too.
        """
        self._check_open()
        if not isinstance(self._engine, FollowingEngine):
            raise RuntimeError("follow() is for processes other than 0: this one takes requests")
        self._engine.follow(new_params)

    def close(self) -> None:
        """Abort everything, end the engine's thread, free the device memory. Safe to repeat."""
        self._finalizer()
        if self._driver is not None:
            self._driver.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open_driver(self) -> EngineDriver:
        """What takes the requests, if this object does."""
        self._check_open()
        if self._driver is None:
            raise RuntimeError("process 0 takes the requests; this process can only follow()")
        return self._driver

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("this LLM is closed; make a new one")


def _close(*actions: Callable[[], None] | None) -> None:
    for action in actions:
        if action is not None:
            action()
