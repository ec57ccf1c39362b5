"""The named workloads W1 to W5: fixed prompt and output lengths for every engine and run.

Token ids are drawn anew for each workload and repeat, lengths never change. The number of
prompt tokens in the prefix cache is part of a workload: another number is an error.
"""

import dataclasses
import random
from collections.abc import Callable

WORKLOAD_NAMES = ("W1", "W1-mixed", "W2", "W3", "W4", "W5", "W5-long")

_FIRST_TOKEN_IDS = 10_000  # ids below this, as in nano-vLLM's benchmark


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Prompts and output lengths, all submitted at once and run to the end.

    Attributes:
        name: one of `WORKLOAD_NAMES`.
        description: in one line.
        prompts: token ids of each prompt.
        max_tokens: tokens to write after each prompt, exactly (end-of-text is ignored).
        temperature: of every request.
        num_samples: answers per prompt (vLLM's `n`).
        shared_tokens: leading tokens that all prompts have in common.
        starts_warm: the shared tokens are in the prefix cache when the run begins.
        returns_logprobs: log-probabilities of the sampled tokens are asked for.
        demanding_every: one request in this many has penalties, a bias, least tokens and five
            likeliest tokens at each position; 0 for none.
    """

    name: str
    description: str
    prompts: list[list[int]]
    max_tokens: list[int]
    temperature: float = 0.0
    num_samples: int = 1
    shared_tokens: int = 0
    starts_warm: bool = False
    returns_logprobs: bool = False
    demanding_every: int = 0

    def is_demanding(self, index: int) -> bool:
        """Whether the request of this prompt is one of the demanding ones."""
        return self.demanding_every > 0 and index % self.demanding_every == 0

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(self.max_tokens) * self.num_samples

    @property
    def num_sequences(self) -> int:
        """Sequences that decode at once when all fit."""
        return len(self.prompts) * self.num_samples

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence, prompt and answer."""
        lengths = zip(self.prompts, self.max_tokens, strict=True)
        return max(len(prompt) + output for prompt, output in lengths)

    def cached_tokens(self, *, num_replicas: int = 1, prefix_caching: bool = True) -> range:
        """The number of prompt tokens that a correct run finds in the prefix cache.

        A prompt counts once, by its first sample: siblings always find it. Prompts are admitted
        in order and whole before the next one, so that on one engine exactly the first prompt of a
        cold run computes the shared tokens. Each of several replicas may compute them once; a warm
        run finds them in at least one of them.

        Args:
            num_replicas: engines behind the queue, each with a prefix cache of its own.
            prefix_caching: whether the engine looks for prefixes at all.

        Returns:
            Multiples of `shared_tokens` from the least to the most, or zero alone.
        """
        if not (self.shared_tokens and prefix_caching):
            return range(1)
        most = len(self.prompts) - (not self.starts_warm)
        least = most - (min(num_replicas, len(self.prompts)) - 1)
        return range(least * self.shared_tokens, most * self.shared_tokens + 1, self.shared_tokens)


def make_workload(name: str, repeat: int, *, vocab_size: int, warm: bool = False) -> Workload:
    """Draw a workload.

    Args:
        name: one of `WORKLOAD_NAMES`.
        repeat: which draw of token ids; the same number draws the same ids.
        vocab_size: V; ids stay below min(V, 10,000).
        warm: the run that follows a cold one of the same `repeat` on a filled prefix cache: only
            what the prompts do not share is redrawn.

    Raises:
        ValueError: there is no such workload.
    """
    if name not in _MAKERS:
        raise ValueError(f"no workload {name!r}; there are {', '.join(WORKLOAD_NAMES)}")
    limit = min(vocab_size, _FIRST_TOKEN_IDS)
    workload = _MAKERS[name](_IdSource(name, repeat, limit, warm))
    return dataclasses.replace(workload, starts_warm=warm)


class _IdSource:
    """Draws token ids: the shared ones by workload and repeat, the others also by `warm`."""

    def __init__(self, name: str, repeat: int, limit: int, warm: bool) -> None:
        self._shared = random.Random(f"{name} shared {repeat}")
        self._own = random.Random(f"{name} own {repeat} {warm}")
        self._limit = limit

    def own(self, length: int) -> list[int]:
        return [self._own.randrange(self._limit) for _ in range(length)]

    def shared(self, length: int) -> list[int]:
        return [self._shared.randrange(self._limit) for _ in range(length)]


def _nano_vllm_lengths() -> tuple[list[int], list[int]]:
    """Prompt and output lengths of nano-vLLM's bench.py, which draws them from `seed(0)`.

    Its ids come from the same stream, before the output lengths, so they are drawn and dropped.
    """
    source = random.Random(0)
    prompts = []
    for _ in range(256):
        prompts.append(source.randint(100, 1024))
        for _ in range(prompts[-1]):
            source.randint(0, 10_000)
    return prompts, [source.randint(100, 1024) for _ in range(256)]


def _w1(ids: _IdSource) -> Workload:
    prompt_lengths, output_lengths = _nano_vllm_lengths()
    return Workload(
        name="W1",
        description="256 sequences, prompts and outputs of 100 to 1,024 tokens (nano-vLLM's)",
        prompts=[ids.own(length) for length in prompt_lengths],
        max_tokens=output_lengths,
        temperature=0.6,
    )


def _w1_mixed(ids: _IdSource) -> Workload:
    return dataclasses.replace(
        _w1(ids),
        name="W1-mixed",
        description="W1 in which one request in 16 has penalties, a bias and 5 log-probabilities",
        demanding_every=16,
    )


def _w2(ids: _IdSource) -> Workload:
    return Workload(
        name="W2",
        description="one sequence, prompt of 512, 512 outputs",
        prompts=[ids.own(512)],
        max_tokens=[512],
    )


def _w3(ids: _IdSource) -> Workload:
    return Workload(
        name="W3",
        description="16 prompts of 2,048, one output each",
        prompts=[ids.own(2048) for _ in range(16)],
        max_tokens=[1] * 16,
    )


def _w4(ids: _IdSource) -> Workload:
    shared = ids.shared(2048)
    return Workload(
        name="W4",
        description="64 prompts of 2,048 shared tokens and 64 own, 64 outputs",
        prompts=[shared + ids.own(64) for _ in range(64)],
        max_tokens=[64] * 64,
        shared_tokens=2048,
    )


def _w5(ids: _IdSource) -> Workload:
    return Workload(
        name="W5",
        description="group rollouts: 32 prompts of 1,024, 16 samples each, 512 outputs",
        prompts=[ids.own(1024) for _ in range(32)],
        max_tokens=[512] * 32,
        temperature=1.0,
        num_samples=16,
        returns_logprobs=True,
    )


def _w5_long(ids: _IdSource) -> Workload:
    return Workload(
        name="W5-long",
        description="group rollouts: 8 prompts of 4,096, 32 samples each, 512 outputs",
        prompts=[ids.own(4096) for _ in range(8)],
        max_tokens=[512] * 8,
        temperature=1.0,
        num_samples=32,
        returns_logprobs=True,
    )


_MAKERS: dict[str, Callable[[_IdSource], Workload]] = {
    "W1": _w1,
    "W1-mixed": _w1_mixed,
    "W2": _w2,
    "W3": _w3,
    "W4": _w4,
    "W5": _w5,
    "W5-long": _w5_long,
}
