"""A running engine in its own thread, with the tools that `LLM` and `AsyncLLM` need to use it."""

import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.mapping import ParamsMapping, check_mapping, quantizing_mapping
from jaxinfer.rollouts.trees import leaves_by_path, nested
from jaxinfer.serving.call_arguments import CallArguments
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.engine.driver import (
    EngineDriver,
    InFlightPolicy,
    check_in_flight,
    wait_for_closing,
)
from jaxinfer.serving.engine.metrics import Metric
from jaxinfer.serving.processes.engines import FollowingEngine
from jaxinfer.serving.processes.start import start_processes
from jaxinfer.serving.profiling import Profiler
from jaxinfer.serving.recording.one_recording import OneRecording
from jaxinfer.serving.runner.device_params import check_like
from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor
from jaxinfer.serving.startup.loading import load_engine
from jaxinfer.serving.startup.memory import return_freed_memory
from jaxinfer.serving.startup.model_source import ModelSource, check_given

_OWN_KEYWORDS = (
    *("params", "mapping", "config", "mesh", "rules", "logits_processor", "sampler"),
    *("coordinator_address", "num_processes", "process_id"),
)


class EngineHandle:
    """A running engine, closed by `close` or when nothing refers to this object any more.

    Attributes:
        config: the engine's arguments.
        loaded: the engine, its tokenizer, its reader of prompts and its reports.
        arguments: checks what calls are given.
        recording: what is being recorded of the engine.
        profiler: records what the process does; ends with the engine.

    Args:
        owner: the class that the user called, for messages.
        model: as in `LLM`, like all that follow.
    """

    def __init__(
        self,
        owner: str,
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
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        **engine_args: Any,
    ) -> None:
        self._owner = owner
        check_mapping(mapping)
        if mapping is not None and (params is None or config is None):
            raise ValueError("mapping goes with params and config: it is how params become those")
        given, leaves = params, {}
        if params is not None:
            leaves = leaves_by_path(params)
            params = nested(leaves)
        check_given(model, params, config, mesh, rules)
        if mapping is None and config is not None:
            mapping = quantizing_mapping(leaves, config)
        maker = None if mapping is None else MappedParams(given, mapping)
        own = tokenizer if isinstance(tokenizer, Tokenizer) else None
        if own is not None and engine_args.get("skip_tokenizer_init"):
            raise ValueError("skip_tokenizer_init and tokenizer exclude each other; leave one out")
        keywords = {
            "model": None if model is None else str(model),
            "tokenizer": None if tokenizer is None or own is not None else str(tokenizer),
            **engine_args,
        }
        self.config = EngineConfig.from_keywords(keywords, owner=owner, also=_OWN_KEYWORDS)
        wait_for_closing()  # their memory is this engine's
        start_processes(coordinator_address, num_processes, process_id)
        source = ModelSource(
            params=params,
            maker=maker,
            model_config=config,
            tokenizer=own,
            mesh=mesh,
            rules=rules or ShardingRules(),
            logits_processor=logits_processor,
            sampler=sampler,
        )
        self.settings = JaxSettings.here()
        with self.settings.held():
            self.loaded = load_engine(self.config, source)
        self.arguments = CallArguments(self.config, self.loaded)
        self.recording = OneRecording()
        self.profiler = Profiler(self.recording)
        self._driver: EngineDriver | None = None
        self._finalizer = self._run(close_tokenizer=own is None)

    @property
    def following_engine(self) -> FollowingEngine | None:
        """The follower of process 0, in a process that takes no requests; else None."""
        return self.loaded.follower

    @property
    def driver(self) -> EngineDriver:
        """What takes the requests.

        Raises:
            RuntimeError: the engine is closed, or process 0 takes them.
        """
        self.check_open()
        if self._driver is None:
            raise RuntimeError("process 0 takes the requests; this process can only follow()")
        return self._driver

    @property
    def num_compilations(self) -> int:
        """Programs that were compiled since this engine was made."""
        # The first replica counts for all: what XLA compiles, it does for the process.
        return self.loaded.replicas[0].runner.num_compilations

    @property
    def compile_seconds(self) -> float:
        """Seconds that steps have waited for programs to be compiled at their first use."""
        return sum(each.runner.seconds_waited_for_programs for each in self.loaded.replicas)

    @property
    def weight_version(self) -> int:
        """How often the weights were swapped."""
        return max(each.engine.weight_version for each in self.loaded.replicas)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.loaded.replicas[0].scheduler.eos_token_ids

    def new_params(self, tree: Any, mapping: ParamsMapping | None) -> Any:
        """A trainer's parameters as `RequestEngine.update_params` takes them, checked.

        Raises:
            ValueError: names the first path, shape, dtype or sharding that differs.
            TypeError: it is no tree, a leaf is no array, or the mapping is none.
        """
        check_mapping(mapping)
        replicas = self.loaded.replicas
        wanted = replicas[0].runner.wanted_params
        leaves = leaves_by_path(tree)
        if mapping is None:
            mapping = quantizing_mapping(leaves, self.loaded.model_config)
        if mapping is not None:
            writer = MappedParams(tree, mapping)
            writer.check(wanted)
            return writer
        params = nested(leaves)
        check_like(params, wanted, placed=len(replicas) == 1)
        return params

    def params_update(
        self, tree: Any, mapping: ParamsMapping | None, in_flight: InFlightPolicy
    ) -> Callable[[], None]:
        """The action that swaps weights in the engine's thread; raises as `new_params`, at once."""
        check_in_flight(in_flight)
        driver, params = self.driver, self.new_params(tree, mapping)
        return lambda: driver.update_params(params, in_flight)

    def metrics(self) -> list[Metric]:
        """What the engine counts, all replicas together; for the engine's thread."""
        return self.loaded.engine.counts().metrics(
            num_compilations=self.num_compilations, compile_seconds=self.compile_seconds
        )

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def check_open(self) -> None:
        """Raise RuntimeError if the engine is closed."""
        if self.is_closed:
            raise RuntimeError(f"this {self._owner} is closed; make a new one")

    def close(self) -> None:
        """Abort everything, end the engine's thread, free the device memory. Safe to repeat."""
        self._finalizer()
        if self._driver is not None:
            self._driver.close()

    def _run(self, *, close_tokenizer: bool) -> "weakref.finalize[..., Any]":
        """Start the engine's thread, if it has one here; what closes it when this object goes."""
        tokenizer, follower = self.loaded.tokenizer, self.loaded.follower
        end = tokenizer.close if tokenizer is not None and close_tokenizer else None
        if follower is not None:
            return weakref.finalize(self, _do_all, self.profiler.close, follower.close, end)
        constraints = self.loaded.constraints
        release = functools.partial(
            _do_all, self.profiler.close, constraints.close, end, return_freed_memory
        )
        self._driver = EngineDriver(self.loaded.engine, release, constraints, self.settings.held)
        # A finalizer may run in any thread at any point, so it only leaves a message. At the end of
        # Python the driver closes itself.
        finalizer = weakref.finalize(self, self._driver.close_soon)
        finalizer.atexit = False
        return finalizer


def _do_all(*actions: Callable[[], None] | None) -> None:
    for action in actions:
        if action is not None:
            action()
