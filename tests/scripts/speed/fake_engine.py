"""An engine for tests of measurements, which writes what is asked for at once."""

import itertools
import types

from jaxinfer.config import EngineConfig
from jaxinfer.outputs import CompletionOutput, RequestMetrics, RequestOutput
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.startup_report import StartUpTimes


class FakeEngine:
    """Writes what is asked for at once and remembers it; compiles whenever `compiles` says so.

    Its prefix cache knows blocks of 16 tokens, and forgets them unless `is_sticky`.
    """

    def __init__(self, compiles=False, missing=0, is_sticky=False, **arguments):
        self.engine_config = EngineConfig(**arguments)
        self.model_config = shape_config("0.6b")
        self.report = types.SimpleNamespace(
            attention_backend="xla", weight_bytes=3, step_bytes=None
        )
        self.start_up = StartUpTimes(1.0, 2.0, 3.0, 0.5, 1.5, 20.0, 4, 66)
        self.num_compilations, self.num_kv_blocks, self.kv_bytes = 0, 2, 10
        self.compiles, self.missing, self.follows = compiles, missing, False
        self.batches: list[tuple[list[list[int]], list]] = []
        self.is_sticky, self.cached_prefixes, self.resets = is_sticky, set(), []

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def generate(self, prompts, params, use_tqdm):
        self.batches.append((prompts, params))
        self.num_compilations += self.compiles
        return [self._output(prompt, entry) for prompt, entry in zip(prompts, params, strict=True)]

    def reset_prefix_cache(self):
        self.resets.append(len(self.batches))
        if not self.is_sticky:
            self.cached_prefixes.clear()

    def _find(self, prompt) -> int:
        """Leading tokens that are cached; all full blocks are from now on."""
        blocks = (tuple(prompt[end - 16 : end]) for end in range(16, len(prompt), 16))
        prefixes = [*itertools.accumulate(blocks, lambda *pair: hash(pair), initial=0)][1:]
        found = sum(prefix in self.cached_prefixes for prefix in prefixes)
        self.cached_prefixes.update(prefixes)
        return 16 * found

    def _output(self, prompt, params) -> RequestOutput:
        tokens = [1] * (params.max_tokens - self.missing)
        answers = [CompletionOutput(i, "", tokens) for i in range(params.n)]
        metrics = RequestMetrics(0.0, 1.0, 3.0, 3.0, num_generated_tokens=len(tokens))
        return RequestOutput(
            *("0", None, prompt, answers),
            finished=True,
            num_cached_tokens=self._find(prompt),
            metrics=metrics,
        )
