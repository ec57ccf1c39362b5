"""Time the attention kernels on one GPU: a table on stdout, every repeat as JSON.

    python scripts/kernel_bench.py --output benchmarks/results/kernels.json
    python scripts/kernel_bench.py --backends --output benchmarks/results/attention-backends.json
    python scripts/kernel_bench.py --only decode/B=1 --sweep

Each figure is the time of one launch among many dependent ones inside a jit, so gaps between calls
don't count; block tables rotate over a pool far larger than the L2 cache. The floor is the bytes
that must be read at 4.3 TB/s (decode, page write) or the operations (prefill, as TFLOP/s).
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.attention import paged_attention
from jaxinfer.kernels.choice import RANKINGS, Backend, choose_backend
from jaxinfer.kernels.mosaic import wide
from jaxinfer.kernels.mosaic.add_norm import add_norm
from jaxinfer.kernels.mosaic.decode import DecodeConfig, paged_decode_attention
from jaxinfer.kernels.mosaic.norm_rope_write import norm_rope_write
from jaxinfer.kernels.mosaic.prefill import PrefillConfig, paged_prefill_attention
from jaxinfer.kernels.mosaic.silu_mul import silu_mul
from jaxinfer.measure.machine import describe_machine, git_commit
from scripts.figures.results import ROOT

_BANDWIDTH = 4.3e12  # bytes/s, copy bandwidth measured on the H200
_W1_CONTEXTS = np.random.default_rng(0).integers(100, 1601, 256)


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem. `queries` is None for decoding; `contexts` for what only reads `tokens` rows."""

    name: str
    contexts: tuple[int, ...] | None
    queries: tuple[int, ...] | None = None
    tokens: int = 0
    H: int = 16
    K: int = 8
    D: int = 128
    S: int = 16
    columns: int = 0  # of a row of the elementwise kernels and of products
    features: tuple[int, ...] = ()  # of the weights of products

    @property
    def work(self) -> tuple[str, float]:
        """What the time is held against: ("bytes" or "operations", how many)."""
        if self.features:
            return "bytes", sum(self.features) * self.columns * 2
        if self.columns:
            arrays = 4 if self.name.startswith("add_norm") else 3
            return "bytes", self.tokens * self.columns * 2 * arrays
        if self.contexts is None:
            return "bytes", self.tokens * (self.H + 2 * self.K) * self.D * 2 * 2
        if self.queries is None:
            return "bytes", sum(self.contexts) * self.K * self.D * 2 * 2
        pairs = sum(
            n * (c - n) + n * n / 2 for n, c in zip(self.queries, self.contexts, strict=True)
        )
        return "operations", 4 * self.H * self.D * pairs


def cases() -> list[Case]:
    """The shapes of Qwen3-0.6B that the documentation quotes."""
    w1 = tuple(int(n) for n in _W1_CONTEXTS)
    return [
        *(Case(f"decode/B=256 page {s}", w1, S=s) for s in (16, 64, 256)),
        Case("decode/B=64", w1[:64]),
        Case("decode/B=8 8k", (8192,) * 8),
        Case("decode/B=1 8k", (8192,)),
        Case("decode/B=1 32k", (32768,)),
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


def configs(case: Case, sweep: bool) -> list[Any]:
    """Kernel configurations to time; None is the kernel's own choice."""
    if not sweep or case.contexts is None:
        return [None]
    if case.queries is None:
        splits = (1,) if len(case.contexts) >= 64 else (2, 4, 8, 16, 32)
        sizes = ((64, 3), (64, 6), (128, 2), (128, 3))
        return [DecodeConfig(b, s, n) for b, s in sizes for n in splits]
    return [PrefillConfig(128, 2, True), PrefillConfig(128, 2, False), PrefillConfig(64, 4, True)]


_COMPARED = ("decode/B=256 page 16", "decode/B=8 8k", "prefill/4 x 2k page 16")


def variants(case: Case, *, sweep: bool, compare: bool) -> list[tuple[Backend, Any]]:
    """What to time a case with: backends in their own configurations, or Mosaic in several."""
    if not compare:
        return [("mosaic", config) for config in configs(case, sweep)]
    return [(backend, None) for backend in backends(case)] if case.name in _COMPARED else []


def backends(case: Case) -> list[Backend]:
    """The implementations of attention that can run here."""
    device = jax.devices()[0]
    major, minor = map(int, device.compute_capability.split("."))
    possible: list[Backend] = []
    for backend in RANKINGS[9, 0].order:
        try:
            choose_backend(
                backend,
                head_dim=case.D,
                dtype="bfloat16",
                block_size=case.S,
                group_size=case.H // case.K,
                platform=device.platform,
                compute_capability=(major, minor),
            )
            possible.append(backend)
        except ValueError as error:
            print(error, file=sys.stderr)
    return possible


def block_tables(case: Case, pages: int, sets: int) -> list[jax.Array]:
    """`sets` tables over a shuffled pool, each page in at most one table where the pool allows."""
    assert case.contexts is not None
    counts = [-(-n // case.S) for n in case.contexts]
    order = np.random.default_rng(1).permutation(pages - 1) + 1
    tables = []
    for index in range(sets):
        start = index % max(1, (pages - 1) // sum(counts)) * sum(counts)
        ids = iter(order[start : start + sum(counts)])
        table = np.zeros((len(counts), max(counts)), np.int32)
        for row, count in enumerate(counts):
            table[row, :count] = [next(ids) for _ in range(count)]
        tables.append(jnp.asarray(table))
    return tables


def pool(case: Case, nbytes: float) -> tuple[jax.Array, jax.Array]:
    """Random key and value pages of `nbytes` in all."""
    shape = (int(nbytes / (case.S * case.K * case.D * 4)), case.S, case.K, case.D)
    draw = jax.jit(lambda seed: jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16))
    return draw(0), draw(1)


def attention_runner(case: Case, backend: Backend, config: Any, launches: int) -> Callable[[], Any]:
    """A call that runs `launches` dependent launches: each output is the next one's query."""
    assert case.contexts is not None
    k_pages, v_pages = pool(case, 3.2e9)
    sets = 4
    tables = block_tables(case, k_pages.shape[0], sets)
    contexts = jnp.asarray(case.contexts, jnp.int32)
    tokens = len(case.contexts) if case.queries is None else sum(case.queries)
    q = jax.random.normal(jax.random.key(2), (tokens, case.H, case.D), jnp.bfloat16)
    scale = case.D**-0.5

    @jax.jit  # One trace and one compilation for all launches.
    def once(q, k_pages, v_pages, contexts, table):
        if case.queries is None and config is not None:
            return paged_decode_attention(
                q, k_pages, v_pages, contexts, table, scale=scale, config=config
            )
        lengths = case.queries or (1,) * len(contexts)
        offsets = jnp.asarray(np.concatenate([[0], np.cumsum(lengths)]), jnp.int32)
        if config is None:
            return paged_attention(
                q,
                k_pages,
                v_pages,
                offsets,
                contexts,
                table,
                scale=scale,
                max_query_len=1 if case.queries is None else None,
                backend=backend,
            )
        return paged_prefill_attention(
            q, k_pages, v_pages, offsets, contexts, table, scale=scale, config=config
        )

    def many(q, k_pages, v_pages, contexts, *tables):
        for index in range(launches):
            q = once(q, k_pages, v_pages, contexts, tables[index % sets])
        return q

    compiled = jax.jit(many).lower(q, k_pages, v_pages, contexts, *tables).compile()
    return lambda: compiled(q, k_pages, v_pages, contexts, *tables)


def write_runner(case: Case, launches: int) -> Callable[[], Any]:
    """A call that normalises, rotates and writes the same tokens `launches` times."""
    k_pages, v_pages = pool(case, 2e9)
    width = case.H + 2 * case.K
    rows = jax.random.normal(jax.random.key(2), (case.tokens, width, case.D), jnp.bfloat16)
    q, k, v = rows[:, : case.H], rows[:, case.H : case.H + case.K], rows[:, case.H + case.K :]
    weight = jnp.ones((case.D,), jnp.bfloat16)
    cosine = jnp.ones((case.tokens, case.D), jnp.bfloat16)
    slots = np.random.default_rng(1).permutation(k_pages.shape[0] * case.S)[: case.tokens]
    slots = jnp.asarray(slots, jnp.int32)

    @jax.jit
    def once(q, k, v, k_pages, v_pages):
        return norm_rope_write(
            (q, k, v), weight, weight, cosine, cosine, k_pages, v_pages, slots, eps=1e-6
        )

    def many(q, k, v, k_pages, v_pages):
        for _ in range(launches):
            q, k_pages, v_pages = once(q, k, v, k_pages, v_pages)
        return q, k_pages, v_pages

    compiled = jax.jit(many, donate_argnums=(3, 4)).lower(q, k, v, k_pages, v_pages).compile()
    state = [k_pages, v_pages]

    def run():
        out, *state[:] = compiled(q, k, v, *state)
        return out

    return run


def elementwise_runner(case: Case, launches: int) -> Callable[[], Any]:
    """A call that runs `launches` dependent launches over inputs larger together than the L2."""
    shape = (case.tokens, case.columns)
    draw = jax.jit(lambda seed: jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16))
    inputs = [draw(seed) for seed in range(max(4, int(4e8 / draw(0).nbytes)))]
    weight = jnp.ones(case.columns, jnp.bfloat16)

    @jax.jit
    def once(x, other):
        if case.name.startswith("silu_mul"):
            return silu_mul(x, other)
        return add_norm(x, other, weight, eps=1e-6)[0]

    def many(inputs):
        x = inputs[0]
        for index in range(launches):
            x = once(x, inputs[1 + index % (len(inputs) - 1)])
        return x

    compiled = jax.jit(many).lower(inputs).compile()
    return lambda: compiled(inputs)


def products_runner(case: Case, launches: int) -> Callable[[], Any]:
    """A call that runs `launches` dependent launches, each with weights of its own."""
    draw = jax.jit(
        lambda seed, rows: jax.random.normal(
            jax.random.key(seed), (rows, case.columns), jnp.bfloat16
        ),
        static_argnums=1,
    )
    weights = [[draw(i, rows) for rows in case.features] for i in range(launches)]
    x = draw(launches, case.tokens)

    @jax.jit
    def once(x, weights):
        if len(weights) == 2:  # The next rows are cut out of the result: a kernel of 1.7 us.
            return wide.gated(x, *weights)[:, : case.columns]
        return wide.project(x, weights)[1]

    def many(x, weights):
        for one in weights:
            x = once(x, one)
        return x

    compiled = jax.jit(many).lower(x, weights).compile()
    return lambda: compiled(x, weights)


def measure(run: Callable[[], Any], launches: int, repeats: int) -> list[float]:
    """Microseconds per launch, `repeats` times, after warming up the clocks."""
    lock = Path(tempfile.gettempdir()) / "jaxinfer-kernel-bench.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # Another bench on this machine waits its turn.
        jax.block_until_ready(run())
        start = time.perf_counter()
        jax.block_until_ready(run())
        one = time.perf_counter() - start
        calls = max(3, int(0.03 / one))
        times = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            for _ in range(calls - 1):
                run()
            jax.block_until_ready(run())
            times.append((time.perf_counter() - start) / calls / launches * 1e6)
    return times[1:]  # The first repeat is the warm-up.


def results(only: str, repeats: int, *, sweep: bool, compare: bool) -> Iterator[dict[str, Any]]:
    """Times every case whose name contains `only`, in each of its `variants`."""
    for case in cases():
        if only not in case.name:
            continue
        for backend, config in variants(case, sweep=sweep, compare=compare):
            launches = 8 if case.queries or len(case.contexts or ()) >= 64 else 24
            try:
                if case.features:
                    run = products_runner(case, launches)
                elif case.columns:
                    run = elementwise_runner(case, launches)
                elif case.contexts is None:
                    run = write_runner(case, launches)
                else:
                    run = attention_runner(case, backend, config, launches)
                times = measure(run, launches, repeats)
            except Exception as error:  # One impossible configuration must not end a sweep.
                print(f"{case.name} {backend} {config}: {error!r:.200}", file=sys.stderr)
                continue
            kind, amount = case.work
            median = statistics.median(times)
            rate = amount / median * 1e6
            figure = (
                {"percent_of_4.3TBs": 100 * rate / _BANDWIDTH}
                if kind == "bytes"
                else {"tflops": rate / 1e12}
            )
            yield {
                "case": case.name,
                "config": config and dataclasses.asdict(config),
                **({"backend": backend} if compare else {}),
                "H": case.H,
                "K": case.K,
                "D": case.D,
                "page_size": case.S,
                kind: amount,
                "microseconds": times,
                "median_microseconds": median,
                **figure,
            }


def main() -> None:
    """Runs the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--sweep", action="store_true", help="time several configurations")
    parser.add_argument("--backends", action="store_true", help="compare with Triton and XLA")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commit", default=None, help="recorded when there is no repository")
    parser.add_argument("--output", type=Path, default=None, help="JSON file to write")
    args = parser.parse_args()
    report = {
        "kind": "kernels",
        "commit": args.commit or git_commit(ROOT),
        "command": shlex.join(["python", *sys.argv]),
        "machine": describe_machine(),
        "results": [],
    }
    for result in results(args.only, args.repeats, sweep=args.sweep, compare=args.backends):
        report["results"].append(result)
        key = "tflops" if "tflops" in result else "percent_of_4.3TBs"
        times = result["microseconds"]
        print(
            f"{result['case']:24} {result['config'] or result.get('backend', 'default')!s:62} "
            f"{result['median_microseconds']:9.2f} us [{min(times):.1f}..{max(times):.1f}]"
            f" {result[key]:7.1f} {key}",
            flush=True,
        )
        if args.output:
            args.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
