"""The Triton programs of paged attention: the same algorithms as the Mosaic kernels, for any GPU.

Online softmax over tiles of keys (FlashAttention, arXiv:2205.14135) gathered from pages through a
block table (PagedAttention, arXiv:2309.06180). Scores are kept in powers of two: `qk_scale` holds
the softmax scale times log2(e).
"""

import triton
import triton.language as tl


@triton.jit
def decode_kernel(
    q,
    k_pages,
    v_pages,
    lengths,
    tables,
    out,
    log_sums,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    W: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    qk_scale: tl.constexpr,
):
    """One program per (sequence, kv head, split); `out[SPLITS, B, H, D]`, `log_sums[SPLITS, B, H]`.

    A group's query heads are the rows of the products, padded to `BLOCK_G`. Outputs are normalised
    by the split's own sum; a split without keys leaves zeros and -inf. WINDOW 0 means none.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tl.num_programs(0)
    group: tl.constexpr = H // K
    length = tl.load(lengths + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    begin_tile = first // BLOCK_N
    end_tile = tl.cdiv(length, BLOCK_N)
    share = tl.cdiv(end_tile - begin_tile, SPLITS)
    begin_tile += split * share
    end_tile = tl.minimum(begin_tile + share, end_tile)

    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, D)
    n = tl.arange(0, BLOCK_N)
    heads = row * H + kv_head * group + g
    in_group = g < group
    queries = tl.load(q + heads[:, None] * D + d[None, :], mask=in_group[:, None], other=0.0)
    m = tl.full([BLOCK_G], -1e30, tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, D], tl.float32)
    for tile in range(begin_tile, end_tile):
        position = tile * BLOCK_N + n
        visible = (position < length) & (position >= first)
        page = tl.load(tables + row * W + position // S, mask=visible, other=0).to(tl.int64)
        at = ((page * S + position % S) * K + kv_head) * D
        keys = tl.load(k_pages + at[None, :] + d[:, None], mask=visible[None, :], other=0.0)
        s = tl.dot(queries, keys) * qk_scale
        s = tl.where(visible[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        weights = tl.exp2(s - m_new[:, None])
        rescale = tl.exp2(m - m_new)
        total = total * rescale + tl.sum(weights, 1)
        values = tl.load(v_pages + at[:, None] + d[None, :], mask=visible[:, None], other=0.0)
        acc = acc * rescale[:, None] + tl.dot(weights.to(values.dtype), values)
        m = m_new

    safe = tl.where(total > 0, total, 1.0)
    result = (acc / safe[:, None]).to(out.dtype.element_ty)
    heads += split * rows * H
    tl.store(out + heads[:, None] * D + d[None, :], result, mask=in_group[:, None])
    log_sum = tl.where(total > 0, m + tl.log2(safe), float("-inf"))
    tl.store(log_sums + heads, log_sum, mask=in_group)


@triton.jit
def prefill_kernel(
    q,
    k_pages,
    v_pages,
    tables,
    lines,
    count,
    out,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    W: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    qk_scale: tl.constexpr,
):
    """One program per line of the work list and query head, which runs fastest; `out[T, H, D]`.

    Columns of a line: `jaxinfer.kernels.attention.mosaic.work_list.Field`. WINDOW 0
    means none.
    """
    head, item = tl.program_id(0) % H, tl.program_id(0) // H
    if item >= tl.load(count):
        return
    line = lines + item * 8
    row = tl.load(line)
    query = tl.load(line + 1) * 8 + tl.arange(0, BLOCK_M)
    mine = (query >= tl.load(line + 2)) & (query < tl.load(line + 3))
    position = query + tl.load(line + 4)
    first_key, end_key, length = tl.load(line + 5), tl.load(line + 6), tl.load(line + 7)

    d = tl.arange(0, D)
    n = tl.arange(0, BLOCK_N)
    kv_head = head // (H // K)
    at_query = (query * H + head).to(tl.int64) * D
    queries = tl.load(q + at_query[:, None] + d[None, :], mask=mine[:, None], other=0.0)
    m = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    for tile in range(first_key // BLOCK_N, tl.cdiv(end_key, BLOCK_N)):
        key = tile * BLOCK_N + n
        exists = key < length
        page = tl.load(tables + row * W + key // S, mask=exists, other=0).to(tl.int64)
        at = ((page * S + key % S) * K + kv_head) * D
        keys = tl.load(k_pages + at[None, :] + d[:, None], mask=exists[None, :], other=0.0)
        visible = position[:, None] >= key[None, :]
        if WINDOW > 0:
            visible &= key[None, :] > position[:, None] - WINDOW
        s = tl.where(visible, tl.dot(queries, keys) * qk_scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        weights = tl.exp2(s - m_new[:, None])
        rescale = tl.exp2(m - m_new)
        total = total * rescale + tl.sum(weights, 1)
        values = tl.load(v_pages + at[:, None] + d[None, :], mask=exists[:, None], other=0.0)
        acc = acc * rescale[:, None] + tl.dot(weights.to(values.dtype), values)
        m = m_new
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    target = out + at_query[:, None] + d[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=mine[:, None])
