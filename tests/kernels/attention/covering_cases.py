"""Few cases of paged attention that meet every value of the full lists, for what compiles slowly.

XLA takes a third of a second to compile a shape, so each of these crosses several edges at once.
The full lists of `attention_cases` are marked `exhaustive` where these stand for them.
"""

import pytest

from tests.kernels.attention.attention_cases import Case, edges

# Query heads a key head, key heads and head_dim; each meets another page size.
_DECODE_HEADS = ((1, 2, 128), (2, 8, 128), (3, 2, 64), (4, 1, 64), (5, 2, 128), (16, 1, 128))
_PREFILL_HEADS = ((16, 1, 64), (3, 2, 64), (8, 1, 128), (1, 2, 128))


def decode_cases() -> list[Case]:
    """Decoding: every page size at all of its edges, empty rows, a window, shared pages."""
    cases = [
        Case(
            f"decode_block{s}_gqa{g}_d{d}",
            (1,) * (len(edges(s)) + 1),
            (*edges(s)[:2], 0, *edges(s)[2:]),
            num_heads=g * k,
            num_kv_heads=k,
            head_dim=d,
            block_size=s,
            window=33 if s == 64 else None,
            spare_width=37 if s == 16 else 0,
            decode=True,
        )
        for s, (g, k, d) in zip((8, 16, 32, 64, 128, 256), _DECODE_HEADS, strict=True)
    ]
    many = [33 + (i * 53) % 411 for i in range(36)]
    return [
        *cases,
        Case("decode_row_alone", (1,), (77,), decode=True),
        Case(
            "decode_many_and_long",
            (1,) * 37,
            (*many, 2049),
            decode=True,
            group=5,
            shared_keys=32,
        ),
    ]


def prefill_cases() -> list[Case]:
    """Packed ragged prefill: whole prompts, later chunks, prefix hits, decoding rows, padding."""
    cases = [
        Case(
            f"prefill_block{s}_gqa{g}_d{d}",
            (s - 1, 0, s, s + 1, 2 * s + 1, 70, 1),
            (s - 1, 0, s, s + 1, 2 * s + 1, 200, 33),
            num_heads=g * k,
            num_kv_heads=k,
            head_dim=d,
            block_size=s,
            pad_tokens=5,
        )
        for s, (g, k, d) in zip((8, 16, 64, 256), _PREFILL_HEADS, strict=True)
    ]
    mixed = Case(
        "prefill_mixed",
        (1, 16, 64, 65, 0, 300, 1, 2, 130, 0),
        (300, 48, 191, 65, 0, 1000, 1, 258, 387, 0),
        block_size=32,
        pad_tokens=3,
        spare_width=19,
    )
    window = Case(
        "prefill_window_gqa2",
        (40, 200, 1),
        (40, 329, 300),
        num_heads=16,
        num_kv_heads=8,
        window=50,
    )
    return [*cases, mixed, window]


def params(quick: list[Case], full: list[Case]) -> list:
    """Parameters of a test: the cases of `quick`, and of `full` behind the mark `exhaustive`."""
    return [
        *(pytest.param(case, id=case.name) for case in quick),
        *(pytest.param(case, id=case.name, marks=pytest.mark.exhaustive) for case in full),
    ]
