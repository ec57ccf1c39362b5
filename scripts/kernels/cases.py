"""The cases that kernels are timed with: shapes of Qwen3-0.6B, and the work in each."""

import dataclasses
from typing import Literal

import numpy as np

Unit = Literal["bytes", "operations"]

COMPARED_CASES = ("decode/B=256 page 16", "decode/B=8 8k", "prefill/4 x 2k page 16")
"""The cases for comparing implementations of attention."""

_NARROW = (
    "decode/B=256 page 16",
    "decode/B=64",
    "decode/B=8 8k",
    "decode/B=1 32k",
    "decode/32 x 16 share 1k",
    "decode/8 x 32 share 4k",
    "prefill/4 x 2k page 16",
    "prefill/1 x 8k page 16",
    "write/T=2",
    "write/T=256",
)
"""Cases that are timed with pages of float8_e4m3fn, too."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        name: KERNEL/SIZES.
        contexts: tokens of each sequence; None for kernels of rows alone.
        queries: tokens of each sequence that attend; None for one each, as in decoding.
        tokens: rows of a kernel without sequences.
        H: query heads.
        K: key/value heads.
        D: head_dim.
        S: tokens of a page.
        columns: of a row of the elementwise kernels and of products; 0 for others.
        features: of the weights of products.
        group: neighbouring sequences that begin alike; 0 where none do.
        shared: keys that each of them begins with, a multiple of S.
        page_bytes: of a value in pages: 2 of bfloat16, 1 of float8_e4m3fn.
    """

    name: str
    contexts: tuple[int, ...] | None
    queries: tuple[int, ...] | None = None
    tokens: int = 0
    H: int = 16
    K: int = 8
    D: int = 128
    S: int = 16
    columns: int = 0
    features: tuple[int, ...] = ()
    group: int = 0
    shared: int = 0
    page_bytes: int = 2

    @property
    def work(self) -> tuple[Unit, float]:
        """The work that the time is compared with: bytes to be moved, or operations."""
        if self.features:
            return "bytes", sum(self.features) * self.columns * 2
        if self.columns:
            arrays = 4 if self.name.startswith("add_norm") else 3
            return "bytes", self.tokens * self.columns * 2 * arrays
        if self.contexts is None:
            read = (self.H + 2 * self.K) * 2
            written = self.H * 2 + 2 * self.K * self.page_bytes
            return "bytes", self.tokens * self.D * (read + written)
        if self.queries is None:
            keys = sum(self.contexts)
            if self.group:  # each group's shared keys are read once
                keys -= self.shared * (len(self.contexts) - len(self.contexts) // self.group)
            return "bytes", keys * self.K * self.D * 2 * self.page_bytes
        pairs = sum(
            n * (c - n) + n * n / 2 for n, c in zip(self.queries, self.contexts, strict=True)
        )
        return "operations", 4 * self.H * self.D * pairs


def kernel_cases() -> list[Case]:
    """All cases, attention first."""
    mixed = _mixed_contexts()
    cases = [
        *(Case(f"decode/B=256 page {s}", mixed, S=s) for s in (16, 64, 256)),
        Case("decode/B=64", mixed[:64]),
        Case("decode/B=8 8k", (8192,) * 8),
        Case("decode/B=1 8k", (8192,)),
        Case("decode/B=1 32k", (32768,)),
        Case("decode/32 x 16 share 1k", (1280,) * 512, group=16, shared=1008),
        Case("decode/8 x 32 share 4k", (4352,) * 256, group=32, shared=4080),
        *(Case(f"prefill/4 x 2k page {s}", (2048,) * 4, (2048,) * 4, S=s) for s in (16, 64)),
        *(Case(f"prefill/1 x 8k page {s}", (8192,), (8192,), S=s) for s in (16, 64)),
        Case("prefill/16 x 512", (512,) * 16, (512,) * 16),
        Case("prefill/2k after 6k", (8192,), (2048,)),
        *(Case(f"write/T={t}", None, tokens=t) for t in (2, 256, 8192)),
        *(Case(f"add_norm/T={t}", None, tokens=t, columns=1024) for t in (1024, 8192)),
        *(Case(f"silu_mul/T={t}", None, tokens=t, columns=3072) for t in (1024, 8192)),
        *(
            Case(f"{name}/B={b}", None, tokens=b, columns=1024, features=features)
            for name, features in (("q, k, v", (2048, 1024, 1024)), ("gate, up", (3072, 3072)))
            for b in (32, 64, 128, 256)
        ),
    ]
    narrow = [case for case in cases if case.name in _NARROW]
    return cases + [
        dataclasses.replace(case, name=f"{case.name} fp8", page_bytes=1) for case in narrow
    ]


def _mixed_contexts() -> tuple[int, ...]:
    """Contexts of W1's sequences in the middle of their answers: 850 tokens on average."""
    return tuple(int(n) for n in np.random.default_rng(0).integers(100, 1601, 256))
