"""Chains of dependent launches of one kernel, compiled as one program, so that gaps don't count.

Each launch reads other data than the last, in all more than the L2 cache holds.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.attention.mosaic.decode import DecodeConfig, paged_decode_attention
from jaxinfer.kernels.attention.mosaic.prefill import PrefillConfig, paged_prefill_attention
from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes, rows_in_item
from jaxinfer.kernels.choice import Backend
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic import medium
from jaxinfer.kernels.norms.mosaic.add_norm import add_norm
from jaxinfer.kernels.norms.mosaic.norm_rope_write import norm_rope_write
from jaxinfer.kernels.norms.mosaic.silu_mul import silu_mul
from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.shared_prefixes import find_groups, most_items, write_items
from scripts.kernels.cases import Case

Run = Callable[[], Any]
Config = DecodeConfig | PrefillConfig | None
"""The configuration of an attention kernel; None is the kernel's own choice."""

_POOL_BYTES = 3.2e9
_ROWS_BYTES = 4e8
_TABLES = 4  # that launches take in turn


def make_chain(
    case: Case, launches: int, backend: Backend = "mosaic", config: Config = None
) -> Run:
    """A call that runs a case `launches` times, each launch after the last.

    Args:
        case: the problem.
        launches: how many times.
        backend: of attention.
        config: of a Mosaic attention kernel.
    """
    if case.features:
        return _products(case, launches)
    if case.columns:
        return _elementwise(case, launches)
    if case.contexts is None:
        return _page_writes(case, launches)
    return _attention(case, case.contexts, launches, backend, config)


def _attention(
    case: Case, contexts: tuple[int, ...], launches: int, backend: Backend, config: Config
) -> Run:
    """Launches of attention; each output is the next launch's query."""
    pages = _pages(case, _POOL_BYTES)
    tables = _block_tables(case, contexts, pages.k.shape[0])
    lens = jnp.asarray(contexts, jnp.int32)
    queries = case.queries or (1,) * len(contexts)
    offsets = jnp.asarray(np.concatenate([[0], np.cumsum(queries)]), jnp.int32)
    q = _draw(2, sum(queries), case.H, case.D)
    shared = _shared_prefixes(case, contexts, tables[0]) if case.group else None

    @jax.jit  # One trace and one compilation for all launches.
    def once(q: jax.Array, pages: Pages, lens: Any, shared: Any, table: Any) -> jax.Array:
        rows, scoring = PagedRows(lens, table, offsets), Scoring(case.D**-0.5)
        if isinstance(config, DecodeConfig):
            return paged_decode_attention(q, pages, rows, scoring, shared=shared, config=config)
        if isinstance(config, PrefillConfig):
            return paged_prefill_attention(q, pages, rows, scoring, config=config)
        longest = 1 if case.queries is None else None
        return paged_attention(
            q, pages, offsets, lens, table,
            scale=scoring.scale, max_query_len=longest, kernels=Kernels(backend), shared=shared,
        )  # fmt: skip

    def many(q: jax.Array, pages: Pages, lens: Any, *rest: Any) -> jax.Array:
        shared, *tables = rest
        for index in range(launches):
            q = once(q, pages, lens, shared, tables[index % _TABLES])
        return q

    arguments = (q, pages, lens, shared, *tables)
    compiled = jax.jit(many).lower(*arguments).compile()
    return lambda: compiled(*arguments)


def _block_tables(case: Case, contexts: tuple[int, ...], pages: int) -> list[jax.Array]:
    """Tables over a shuffled pool, each page in at most one of them where the pool allows."""
    counts = [-(-n // case.S) for n in contexts]
    shared = case.shared // case.S
    common = [shared if case.group and i % case.group else 0 for i in range(len(counts))]
    drawn = sum(counts) - sum(common)
    order = np.random.default_rng(1).permutation(pages - 1) + 1
    tables = []
    for index in range(_TABLES):
        start = index % max(1, (pages - 1) // drawn) * drawn
        ids = iter(order[start : start + drawn])
        table = np.zeros((len(counts), max(counts)), np.int32)
        for row, (count, old) in enumerate(zip(counts, common, strict=True)):
            table[row, :old] = table[row - 1, :old]
            table[row, old:count] = [next(ids) for _ in range(old, count)]
        tables.append(jnp.asarray(table))
    return tables


def _shared_prefixes(case: Case, contexts: tuple[int, ...], table: jax.Array) -> SharedPrefixes:
    """The work items of keys that rows share, the same for each of a case's tables."""
    rows, size = len(contexts), rows_in_item(case.H // case.K)
    groups = find_groups(
        np.asarray(table),
        np.asarray(contexts),
        block_size=case.S,
        batch_rows=rows,
        rows_in_item=size,
    )
    arrays: list[Any] = [
        np.zeros(shape, np.int32) for shape in (1, (most_items(rows), 4), (rows, 4))
    ]
    shared = SharedPrefixes(*arrays)
    write_items(shared, groups)
    return jax.tree.map(jnp.asarray, shared)


def _page_writes(case: Case, launches: int) -> Run:
    """Launches that normalise, rotate and write the same tokens."""
    pool = _pages(case, _POOL_BYTES / 2)
    rows = _draw(2, case.tokens, case.H + 2 * case.K, case.D)
    heads = tuple(jnp.split(rows, [case.H, case.H + case.K], axis=1))
    weight, cosine = _draw(3, case.D), _draw(4, case.tokens, case.D)
    slots = np.random.default_rng(1).permutation(pool.k.shape[0] * case.S)[: case.tokens]
    slots = jnp.asarray(slots, jnp.int32)

    @jax.jit
    def once(heads: Any, pages: Pages) -> Any:
        return norm_rope_write(heads, weight, weight, cosine, cosine, pages, slots, eps=1e-6)

    def many(heads: Any, pages: Pages) -> Any:
        q, *others = heads
        for _ in range(launches):
            q, pages = once((q, *others), pages)
        return q, pages

    compiled = jax.jit(many, donate_argnums=(1,)).lower(heads, pool).compile()

    def run() -> Any:
        nonlocal pool
        out, pool = compiled(heads, pool)
        return out

    return run


def _elementwise(case: Case, launches: int) -> Run:
    shape = (case.tokens, case.columns)
    inputs = [_draw(0, *shape)]
    inputs += [_draw(i, *shape) for i in range(1, max(4, int(_ROWS_BYTES / inputs[0].nbytes)))]
    weight = _draw(0, case.columns)

    @jax.jit
    def once(x: jax.Array, other: jax.Array) -> jax.Array:
        if case.name.startswith("silu_mul"):
            return silu_mul(x, other)
        return add_norm(x, other, weight, eps=1e-6)[0]

    def many(inputs: list[jax.Array]) -> jax.Array:
        x = inputs[0]
        for index in range(launches):
            x = once(x, inputs[1 + index % (len(inputs) - 1)])
        return x

    compiled = jax.jit(many).lower(inputs).compile()
    return lambda: compiled(inputs)


def _products(case: Case, launches: int) -> Run:
    """Launches of a product; each has weights of its own."""
    shapes = [(features, case.columns) for features in case.features]
    weights = [[_draw(i, *shape) for shape in shapes] for i in range(launches)]
    x = _draw(launches, case.tokens, case.columns)

    @jax.jit
    def once(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        if len(weights) == 2:  # The next rows are cut out of the result: a kernel of 1.7 us.
            gate, up = weights
            return medium.gated(x, gate, up)[:, : case.columns]
        return medium.project(x, weights)[1]

    def many(x: jax.Array, weights: list[list[jax.Array]]) -> jax.Array:
        for one in weights:
            x = once(x, one)
        return x

    compiled = jax.jit(many).lower(x, weights).compile()
    return lambda: compiled(x, weights)


def _pages(case: Case, num_bytes: float) -> Pages:
    """Random key and value pages of a total size in bytes."""
    row = case.S * case.K * case.D
    shape = (int(num_bytes / (row * 2 * case.page_bytes)), case.S, case.K, case.D)
    dtype = jnp.bfloat16 if case.page_bytes == jnp.bfloat16.dtype.itemsize else FP8
    return Pages(*(_draw(seed, *shape).astype(dtype) for seed in (0, 1)))


def _draw(seed: int, *shape: int) -> jax.Array:
    # Under jit there is no float32 copy of the draws.
    draw = jax.jit(lambda seed: jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16))
    return draw(seed)
