"""Decode attention for a CPU, with keys and values read where they lie; compiled by numba.

XLA gathers pages before it multiplies; here each is read once, and reading pages is most of the
time of a step with many rows. Exact attention by online softmax (Milakov and Gimelshein 2018,
arXiv:1805.02867) in float32, over chunks of keys that begin at fixed positions: so a row's result
depends neither on its batch mates nor on the page size.
"""

import math

import numpy as np
from numba import carray, njit

from jaxinfer.kernels.attention.numba.call_frame import (
    argument,
    open_frame,
    pointer,
    register,
    result,
)

DECODE = "jaxinfer_paged_decode_attention"
"""The name of XLA's call target."""
DECODE_INT8 = "jaxinfer_paged_decode_attention_int8"
"""The name of XLA's call target for pages of an int8 cache."""

_CHUNK = 32  # keys
_LOWEST = np.float32(-1e30)  # exponent of keys without weight
# Sums may be vectorised; infinities and NaN keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}
_ZERO, _ONE, _LEAST = np.float32(0), np.float32(1), np.float32(-126)
# Taylor coefficients of 2 ** x about 1/2, scaled by 2 ** 0.5: within 2e-8 over [0, 1].
_CENTRE = np.float32(0.5)
_COEFFICIENTS = tuple(
    np.float32(math.sqrt(2) * math.log(2) ** n / math.factorial(n)) for n in range(8)
)
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = _COEFFICIENTS


@njit(inline="always")
def _exp2(x):
    """2 ** x for x up to 0, nearly to the last bit; vectorised, unlike the library's."""
    x = _LEAST if x < _LEAST else x  # and not max(), which would lose NaN
    whole = np.floor(x)
    y = x - whole - _CENTRE
    fraction = ((_C7 * y + _C6) * y + _C5) * y + _C4
    fraction = (((fraction * y + _C3) * y + _C2) * y + _C1) * y + _C0
    power = (np.int32(whole) + np.int32(127)) << np.int32(23)
    return fraction * np.int32(power).view(np.float32)


@njit(error_model="numpy", fastmath=_FAST)
def _attend(q, k_pages, v_pages, k_scales, v_scales, head, context, first, table, scores, out):
    """One row and KV head: `q` and `out` are `[G, D]`, `scores` `[G, chunk]` is scratch.

    Scales are None for pages of float32; code that reads them is compiled only for int8 pages.
    """
    G, D = q.shape
    S = k_pages.shape[1]
    exponents = np.full(G, _LOWEST, np.float32)
    totals = np.zeros(G, np.float32)
    out[:] = _ZERO
    for start in range(first // _CHUNK * _CHUNK, context, _CHUNK):
        low, high = max(start, first), min(start + _CHUNK, context)
        for key in range(low, high):
            k = k_pages[table[key // S], key % S, head]
            for g in range(G):
                score = _ZERO
                for d in range(D):
                    score += q[g, d] * np.float32(k[d])
                if k_scales is not None:
                    score *= k_scales[table[key // S], key % S, head]
                scores[g, key - low] = score
        for g in range(G):
            exponent = exponents[g]
            for n in range(high - low):
                exponent = max(exponent, scores[g, n])
            exponent = np.ceil(exponent)
            shrink = _exp2(exponents[g] - exponent)
            exponents[g] = exponent
            total = _ZERO
            for n in range(high - low):
                weight = _exp2(scores[g, n] - exponent)
                scores[g, n] = weight
                total += weight
            totals[g] = totals[g] * shrink + total
            for d in range(D):
                out[g, d] *= shrink
        for key in range(low, high):
            v = v_pages[table[key // S], key % S, head]
            for g in range(G):
                weight = scores[g, key - low]
                if v_scales is not None:
                    weight *= v_scales[table[key // S], key % S, head]
                for d in range(D):
                    out[g, d] += weight * np.float32(v[d])
    for g in range(G):
        share = _ONE / totals[g] if totals[g] > _ZERO else _ZERO
        for d in range(D):
            out[g, d] *= share


@njit
def _attend_all(frame, dtype, k_scales, v_scales):
    """Open the buffers and attend for as many pairs as the output holds; `dtype` is the pages'."""
    q_address, sizes = argument(frame, 0, 4)
    B, K, G, D = sizes[0], sizes[1], sizes[2], sizes[3]
    k_address, pages = argument(frame, 1, 4)
    v_address, _ = argument(frame, 2, 4)
    shape = (pages[0], pages[1], pages[2], pages[3])
    contexts_address, _ = argument(frame, 3, 1)
    first_address, _ = argument(frame, 4, 1)
    tables_address, width = argument(frame, 5, 2)
    pair_address, _ = argument(frame, 6, 1)
    out_address, pairs = result(frame, 0, 3)
    q = carray(pointer(q_address), (B, K, G, D), np.float32)
    k_pages = carray(pointer(k_address), shape, dtype)
    v_pages = carray(pointer(v_address), shape, dtype)
    context_lens = carray(pointer(contexts_address), (B,), np.int32)
    first_keys = carray(pointer(first_address), (B,), np.int32)
    block_tables = carray(pointer(tables_address), (B, width[1]), np.int32)
    first_pair = carray(pointer(pair_address), (1,), np.int32)[0]
    out = carray(pointer(out_address), (pairs[0], G, D), np.float32)
    scores = np.empty((G, _CHUNK), np.float32)
    for index in range(pairs[0]):
        row, head = divmod(first_pair + index, K)
        _attend(
            q[row, head],
            k_pages,
            v_pages,
            k_scales,
            v_scales,
            head,
            context_lens[row],
            first_keys[row],
            block_tables[row],
            scores,
            out[index],
        )


@njit(inline="always")
def _scales_of(frame, index):
    address, sizes = argument(frame, index, 3)
    return carray(pointer(address), (sizes[0], sizes[1], sizes[2]), np.float32)


def _handler(frame_pointer):
    """XLA's call target for pages of float32."""
    frame = open_frame(frame_pointer)
    if len(frame) > 0:
        _attend_all(frame, np.float32, None, None)
    return 0


def _int8_handler(frame_pointer):
    """XLA's call target for int8 pages, with their scales as the last two arguments."""
    frame = open_frame(frame_pointer)
    if len(frame) > 0:
        _attend_all(frame, np.int8, _scales_of(frame, 7), _scales_of(frame, 8))
    return 0


register(DECODE, _handler)
register(DECODE_INT8, _int8_handler)
