"""A small random Qwen3 on a real runner, driven by the real scheduler, and a plain loop beside."""

import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.startup.engine_start import StartSettings, start_runner
from tests.model import tiny
from tests.serving.requests.host_request import host_request
from tests.serving.small_llm import CONFIG, SETTINGS

GREEDY = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


@functools.cache
def tiny_params(config: ModelConfig = CONFIG, dtype: str = "float32", seed: int = 0) -> Any:
    """Random weights whose logits differ by enough that greedy choices mean something."""
    return tiny.params(config, jnp.dtype(dtype), seed)


def make_runner(
    *,
    params: Any = None,
    config: ModelConfig = CONFIG,
    devices: int = 1,
    hooks: Any = None,
    **engine: Any,
) -> Runner:
    """A runner that compiles lazily; all runners of a run of the tests share what they compile."""
    setup = StartSettings(
        config, EngineConfig(**(SETTINGS | engine)), ShardingRules(), **(hooks or {})
    )
    given = tiny_params(config) if params is None else params
    return start_runner(setup, given, make_mesh(devices))


def poison(runner: Runner) -> None:
    """Fill every page with NaN, page 0 included: unwritten memory must never be read.

    Integers can't be NaN; of an int8 cache the scales are.
    """

    def fill(pages: jax.Array) -> jax.Array:
        value = np.nan if jnp.issubdtype(pages.dtype, jnp.floating) else -128
        return jax.device_put(np.full(pages.shape, value, pages.dtype), pages.sharding)

    runner.launcher.resident = runner.resident._replace(kv=jax.tree.map(fill, runner.resident.kv))


class Loop:
    """Schedule, launch, and read one step late, as the engine does."""

    def __init__(self, runner: Runner, *, late: bool = True, **scheduler: Any) -> None:
        config = runner._config
        self.runner, self.late = runner, late
        self.pool = BlockPool(runner.num_kv_blocks, config.block_size, config.enable_prefix_caching)
        options = {
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": runner.max_num_batched_tokens,
            "max_model_len": runner.max_model_len,
            "preemption_mode": config.preemption_mode,
        }
        options |= scheduler
        if options["preemption_mode"] == "swap":
            options["num_host_blocks"] = runner.num_host_blocks
            options["host_array_size"] = MOST_BLOCKS
        self.scheduler = Scheduler(self.pool, **options)
        self.in_flight: collections.deque = collections.deque()
        self.requests: list[Request] = []
        self.results: list[tuple[Any, Any]] = []

    def add(self, prompt: list[int], **params: Any) -> Request:
        request = host_request(
            f"r{len(self.requests)}",
            list(prompt),
            SamplingParams(**(GREEDY | params)),
            seed=len(self.requests) if params.get("seed") is None else params["seed"],
        )
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def step(self) -> None:
        schedule = self.scheduler.schedule()
        if schedule is not None:
            self.in_flight.append((schedule, self.runner.launch(schedule)))
        self._read(leave=self.late and schedule is not None)

    def _read(self, *, leave: int) -> None:
        while len(self.in_flight) > leave:
            schedule, step = self.in_flight.popleft()
            result = self.runner.fetch(step)
            self.results.append((schedule, result))
            tokens = result.sampled.tokens.tolist()
            self.scheduler.update(schedule, tokens, result.num_ok, result.drafts)

    def run(self) -> list[list[int]]:
        """Run until no request is left; the outputs in order of `add`."""
        while self.scheduler.has_unfinished or self.in_flight:
            self.step()
        return [request.output_token_ids for request in self.requests]


def prompts(rng: np.random.Generator, lengths: Any, vocab: int = CONFIG.vocab_size) -> list[Any]:
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


def expected_greedy(prompt: list[int], count: int, params: Any = None, config: Any = CONFIG) -> Any:
    """A plain loop over `forward`."""
    tokens = list(prompt)
    params = tiny_params(config) if params is None else params
    for _ in range(count):
        tokens.append(int(np.argmax(expected_logits(tokens, params, config)[-1])))
    return tokens[len(prompt) :]


def expected_logits(tokens: list[int], params: Any = None, config: Any = CONFIG) -> np.ndarray:
    """Logits `[T, V]` of `forward`; padded, so that one program serves all lengths."""
    padded = np.zeros(SETTINGS["max_model_len"], np.int32)
    padded[: len(tokens)] = tokens
    params = tiny_params(config) if params is None else params
    return np.asarray(_logits(params, config, padded))[: len(tokens)]


@functools.partial(jax.jit, static_argnums=1)
def _logits(params: Any, config: ModelConfig, tokens: Any) -> Any:
    return forward(params, config, tokens)
