"""The test body that every implementation of paged attention must pass, against fp64 NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.attention.pages import Pages

# The op with its backend bound: (q, pages, cu_seqlens_q, context_lens, block_tables,
# *, scale, window=None, max_query_len=None) -> out.
Attention = Callable[..., Any]


# For tests whose time is all compilation: half as long, the same numbers.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem: ragged rows over shuffled pages whose unused slots are poisoned with NaN."""

    name: str
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 128
    block_size: int = 16
    window: int | None = None
    pad_tokens: int = 0  # packed tokens that belong to no row
    spare_width: int = 0  # block-table columns beyond the longest row
    decode: bool = False
    group: int = 1  # neighbouring rows that begin with the same pages
    shared_keys: int = 0  # of these rows, in whole pages


def edges(block_size: int) -> tuple[int, ...]:
    """Lengths one below, at and above the ends of a page, of two, and of a tile of 128 keys."""
    around = [block_size * n + d for n in (1, 2, 128 // block_size or 1) for d in (-1, 0, 1)]
    return tuple(sorted({1, *around}))


def decode_cases() -> list[Case]:
    """Decoding: every group size, block size and head_dim; page and chunk edges; empty rows."""
    cases = [
        Case(f"decode_edges_block{s}", (1,) * len(edges(s)), edges(s), block_size=s, decode=True)
        for s in (8, 16, 32, 64, 128, 256)
    ]
    cases += [
        Case(
            f"decode_gqa{g}_d{d}",
            (1,) * 5,
            (1, 17, 0, 128, 300),
            num_heads=g * k,
            num_kv_heads=k,
            head_dim=d,
            decode=True,
        )
        for g, k, d in (
            (1, 2, 128),
            (2, 8, 128),
            (3, 2, 64),
            (4, 1, 64),
            (5, 2, 128),
            (8, 2, 128),
            (16, 1, 128),
            (16, 2, 64),
        )
    ]
    cases += [
        Case("decode_all_empty", (1,) * 4, (0,) * 4, decode=True),
        Case("decode_one_row", (1,), (77,), decode=True),
        Case("decode_wide_table", (1,) * 3, (3, 0, 200), spare_width=37, decode=True),
        Case("decode_window", (1,) * 4, (5, 40, 129, 700), window=33, decode=True),
        Case("decode_many", (1,) * 37, tuple((i * 53) % 411 for i in range(37)), decode=True),
        Case("decode_long", (1,) * 2, (2049, 5), block_size=64, decode=True),
    ]
    return cases


def shared_cases() -> list[Case]:
    """Decoding rows of which each few begin with the same pages."""
    return [
        Case(
            f"decode_shared_gqa{g}_d{d}_block{s}_group{rows}",
            (1,) * 70,
            tuple(keys + 1 + (i * 53) % 211 for i in range(70)),
            num_heads=g * k,
            num_kv_heads=k,
            head_dim=d,
            block_size=s,
            decode=True,
            group=rows,
            shared_keys=keys,
        )
        for g, k, d, s, rows, keys in (
            (1, 4, 128, 16, 70, 320),
            (2, 8, 128, 16, 16, 1008),
            (2, 2, 64, 64, 33, 512),
            (4, 2, 128, 256, 9, 512),
            (5, 2, 128, 32, 7, 416),
            (8, 1, 64, 8, 4, 136),
        )
    ]


def prefill_cases() -> list[Case]:
    """Packed ragged prefill: whole prompts, later chunks, prefix hits, mixed with decoding rows."""
    cases = [
        Case(
            f"prefill_block{s}",
            (1, s - 1, s, s + 1, 2 * s + 1),
            (1, s - 1, s, s + 1, 2 * s + 1),
            block_size=s,
        )
        for s in (8, 16, 64, 256)
    ]
    cases += [
        Case(
            f"prefill_gqa{g}_d{d}",
            (7, 0, 70, 1),
            (7, 0, 200, 33),
            num_heads=g * k,
            num_kv_heads=k,
            head_dim=d,
            pad_tokens=5,
        )
        for g, k, d in ((1, 2, 128), (2, 8, 128), (3, 2, 64), (8, 1, 128), (16, 1, 64))
    ]
    cases += [
        Case("prefill_chunk_offsets", (16, 64, 65, 2), (48, 191, 65, 258)),
        Case("prefill_mixed_with_decode", (1, 1, 1, 90, 1, 130), (9, 300, 128, 90, 1, 387)),
        Case("prefill_all_padding", (0, 0), (0, 0), pad_tokens=16),
        # So much padding that every block of a persistent kernel meets several tiles without keys.
        Case("prefill_mostly_padding", (1, 90, 1), (300, 90, 7), pad_tokens=6000),
        Case("prefill_padding_rows_between", (5, 0, 6, 0), (5, 0, 22, 0), pad_tokens=3),
        Case("prefill_window", (40, 200, 1), (40, 329, 300), window=50),
        Case("prefill_wide_table", (33, 2), (65, 2), spare_width=19),
        Case("prefill_long", (300, 129), (1000, 129), block_size=32),
    ]
    return cases


def random_case(rng: np.random.Generator, *, decode: bool) -> Case:
    """A case with everything drawn at random."""
    rows = int(rng.integers(1, 9))
    block_size = int(rng.choice([8, 16, 32, 64, 128, 256]))
    queries = np.ones(rows, int) if decode else rng.integers(0, 150, rows)
    before = rng.integers(0, 400, rows) * (rng.random(rows) < 0.7)
    contexts = np.where(queries > 0, before + queries, 0)
    if decode:
        contexts *= rng.random(rows) < 0.8
    kv_heads = int(rng.choice([1, 2, 4]))
    return Case(
        "random",
        tuple(map(int, queries)),
        tuple(map(int, contexts)),
        num_heads=kv_heads * int(rng.integers(1, 17)),
        num_kv_heads=kv_heads,
        head_dim=int(rng.choice([64, 128])),
        block_size=block_size,
        pad_tokens=0 if decode else int(rng.integers(0, 9)),
        spare_width=int(rng.integers(0, 5)),
        window=None if rng.random() < 0.8 else int(rng.integers(1, 200)),
        decode=decode,
    )


@dataclasses.dataclass(frozen=True)
class Problem:
    """The arrays of a case, and the exact answer."""

    q: np.ndarray
    pages: Pages
    cu_seqlens_q: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    scale: float
    expected: np.ndarray

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The op's arrays, in order."""
        arrays = self.q, self.pages, self.cu_seqlens_q, self.context_lens, self.block_tables
        return jax.tree.map(jnp.asarray, arrays)


def build(case: Case, dtype: Any, seed: int, page_dtype: Any = None) -> Problem:
    """Draw q, k and v for `case`, rounded to `dtype`; every slot no row reaches is NaN.

    Keys and values are rounded to `page_dtype` instead, if there is one.
    """
    rng = np.random.default_rng(seed)
    S, K, D = case.block_size, case.num_kv_heads, case.head_dim
    counts = [-(-n // S) for n in case.context_lens]
    W = max([*counts, 1]) + case.spare_width
    P = sum(counts) + 3
    T = sum(case.query_lens) + case.pad_tokens

    def draw(*shape: int, dtype: Any = page_dtype or dtype) -> np.ndarray:
        # By NumPy: XLA would compile a conversion for each length.
        return rng.standard_normal(shape).astype(jnp.dtype(dtype))

    q = draw(T, case.num_heads, D, dtype=dtype)
    k_pages = np.full((P, S, K, D), np.nan, jnp.dtype(page_dtype or dtype))
    v_pages = k_pages.copy()
    # Page 0 is poisoned too and pads the tables, as in the engine.
    tables = np.zeros((len(counts), W), np.int32)
    ids = iter(rng.permutation(np.arange(1, P)))
    keys, values = [], []
    for row, length in enumerate(case.context_lens):
        k, v = draw(length, K, D), draw(length, K, D)
        shared = case.shared_keys if row % case.group and length else 0
        if shared:
            tables[row, : shared // S] = tables[row - 1, : shared // S]
            k[:shared], v[:shared] = keys[-1][:shared], values[-1][:shared]
        keys.append(k)
        values.append(v)
        for j in range(shared // S, counts[row]):
            page = tables[row, j] = next(ids)
            part = slice(j * S, min((j + 1) * S, length))
            k_pages[page, : part.stop - part.start] = k[part]
            v_pages[page, : part.stop - part.start] = v[part]
    cu_seqlens = np.concatenate([[0], np.cumsum(case.query_lens)]).astype(np.int32)
    scale = D**-0.5
    expected = _exact(case, q, keys, values, cu_seqlens, scale)
    contexts = np.asarray(case.context_lens, np.int32)
    return Problem(q, Pages(k_pages, v_pages), cu_seqlens, contexts, tables, scale, expected)


def _exact(
    case: Case,
    q: np.ndarray,
    keys: list[np.ndarray],
    values: list[np.ndarray],
    cu_seqlens: np.ndarray,
    scale: float,
) -> np.ndarray:
    out = np.zeros(q.shape)
    group = case.num_heads // case.num_kv_heads
    for row, (queries, context) in enumerate(zip(case.query_lens, case.context_lens, strict=True)):
        if not (queries and context):
            continue
        tokens = slice(cu_seqlens[row], cu_seqlens[row + 1])
        # [H, Q, D] by [H, D, C]: one matrix product a head, which einsum would not take to BLAS.
        k, v = (np.asarray(a[row], np.float64).transpose(1, 0, 2) for a in (keys, values))
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = q[tokens].astype(np.float64).transpose(1, 0, 2) @ k.transpose(0, 2, 1) * scale
        position = np.arange(context - queries, context)[:, None]
        visible = np.arange(context) <= position
        if case.window is not None:
            visible &= np.arange(context) > position - case.window
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[tokens] = (weights @ v).transpose(1, 0, 2)
    return out


def check(
    attention: Attention, case: Case, dtype: Any, *, seed: int = 0, page_dtype: Any = None
) -> None:
    """Run `attention` on `case` and compare with fp64; the shared body of every test."""
    problem = build(case, dtype, seed, page_dtype)
    out = attention(
        *problem.arguments,
        scale=problem.scale,
        window=case.window,
        max_query_len=1 if case.decode else None,
    )
    assert out.shape == problem.q.shape
    assert out.dtype == problem.q.dtype
    got = np.asarray(out).astype(np.float64)
    # Rounding of the inputs' dtype: weights and outputs are rounded once each.
    tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[str(out.dtype)]
    np.testing.assert_allclose(got, problem.expected, rtol=tolerance, atol=tolerance)
    total = sum(case.query_lens)
    assert not got[total:].any(), "padding tokens must give zeros"
