"""A running engine in its own thread, as its doors hold it."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.serving.call_arguments import CallArguments
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.engine.metrics import Metric, expert_metrics
from jaxinfer.serving.pooling.head_reader import HeadReader
from jaxinfer.serving.pooling.task import HeadRows
from jaxinfer.serving.processes.engines import Follower
from jaxinfer.serving.profiling import Profiler
from jaxinfer.serving.recording.one_recording import OneRecording
from jaxinfer.serving.startup.loading import Loaded
from jaxinfer.serving.startup.memory import return_freed_memory


class Handle:
    """A running engine, closed by `close` or when nothing refers to this object any more.

    Args:
        owner: the class that the user called, for messages.
        config: the engine's arguments.
        loaded: the engine, its tokenizer, its reader of prompts and its reports.
        settings: JAX's settings in the engine's thread.
        close_tokenizer: whether the tokenizer ends with the engine.

    Attributes:
        arguments: checks what calls are given.
        recording: what is being recorded of the engine.
        profiler: records what the process does; ends with the engine.
    """

    def __init__(
        self,
        owner: str,
        config: EngineConfig,
        loaded: Loaded,
        settings: JaxSettings,
        *,
        close_tokenizer: bool,
    ) -> None:
        self._owner = owner
        self.config = config
        self.loaded = loaded
        self.settings = settings
        self.arguments = CallArguments(config, loaded)
        self.recording = OneRecording()
        self.profiler = Profiler(self.recording)
        self._driver: Driver | None = None
        self._finalizer = self._run(close_tokenizer=close_tokenizer)

    @property
    def following_engine(self) -> Follower | None:
        """The follower of process 0, in a process that takes no requests; else None."""
        return self.loaded.follower

    @property
    def driver(self) -> Driver:
        """What takes the requests.

        Raises:
            RuntimeError: the engine is closed, or process 0 takes them.
        """
        self.check_open()
        if self._driver is None:
            raise RuntimeError("process 0 takes the requests; this process can only follow()")
        return self._driver

    @functools.cached_property
    def head(self) -> HeadReader:
        """Reads rows of the head, in the engine's thread."""
        return HeadReader(self.loaded.replicas)

    async def read_head(self, token_ids: tuple[int, ...]) -> HeadRows:
        """Rows of the head, for a task: see `HeadReader.read`."""
        return await self.driver.call_async(lambda: self.head.read(token_ids))

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

    def metrics(self) -> list[Metric]:
        """What the engine counts, all replicas together; for the engine's thread."""
        return self.loaded.engine.counts().metrics(
            num_compilations=self.num_compilations, compile_seconds=self.compile_seconds
        ) + expert_metrics(self.loaded.experts.total())

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
        self._driver = Driver(self.loaded.engine, release, constraints, self.settings.held)
        # A finalizer may run in any thread at any point, so it only leaves a message. At the end of
        # Python the driver closes itself.
        finalizer = weakref.finalize(self, self._driver.close_soon)
        finalizer.atexit = False
        return finalizer


def _do_all(*actions: Callable[[], None] | None) -> None:
    for action in actions:
        if action is not None:
            action()
