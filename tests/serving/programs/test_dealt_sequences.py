"""Tokens dealt to devices: each key lies on one, and the parts make the whole of attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import PagedRows, Pages
from jaxinfer.kernels.attention.partial import BACKENDS, merged, partial_attention
from jaxinfer.kernels.collectives.gather import gather_parts
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.sharding import CONTEXT_AXIS, ShardingRules, make_mesh, with_contexts
from jaxinfer.serving.programs.sequences.dealt_sequences import deal, own_keys
from jaxinfer.serving.programs.step_inputs import StepInputs

S, D = 8, 64
# (tokens, keys before them) of each row; the last two are a fork and padding.
ROWS = [(5, 0), (1, 20), (17, 3), (1, 0), (70, 129), (2, 1), (0, 4), (0, 0)]
PADDING = 3


def problem(size, rows=ROWS, heads=4, dtype=jnp.float32, seed=0):
    """Queries of ragged rows, and pages of ``C * S`` tokens in which unused slots are NaN."""
    rng = np.random.default_rng(seed)
    block, kv_heads = S * size, 2
    lens = np.array([count for count, _ in rows])
    contexts = np.array([count + before for count, before in rows]) * (lens > 0)
    width = -(-int(contexts.max()) // block)
    num_pages = 1 + len(rows) * width
    tables = 1 + rng.permutation(num_pages - 1).reshape(len(rows), width)
    pages = np.full((2, num_pages, block, kv_heads, D), np.nan, np.float32)
    for row, context in enumerate(contexts):
        for position in range(context):
            place = tables[row, position // block], position % block
            pages[:, *place] = rng.standard_normal((2, kv_heads, D))
    T = int(lens.sum()) + PADDING
    owner = np.repeat(np.arange(len(rows)), lens)
    offsets = np.concatenate([[0], np.cumsum(lens)])
    positions = np.arange(T - PADDING) - offsets[owner] + (contexts - lens)[owner]
    slots = tables[owner, positions // block] * block + positions % block
    q = rng.standard_normal((T, heads, D))
    of_tokens = [np.pad(each, (0, PADDING)) for each in (positions, slots)]
    inputs = StepInputs(
        token_ids=jnp.arange(T, dtype=jnp.int32),
        positions=jnp.asarray(of_tokens[0], jnp.int32),
        slot_mapping=jnp.asarray(of_tokens[1], jnp.int32),
        cu_seqlens=jnp.asarray(offsets, jnp.int32),
        context_lens=jnp.asarray(contexts, jnp.int32),
        block_tables=jnp.asarray(tables, jnp.int32),
    )
    return jnp.asarray(q, dtype), Pages(*jnp.asarray(pages, dtype)), inputs


def part(pages, size, rank):
    """One device's pages."""
    return jax.tree.map(lambda pool: pool[:, rank::size], pages)


def by_device(array, size):
    """Packed tokens, padded, device by device."""
    padded = jnp.pad(array, ((0, -len(array) % size), *[(0, 0)] * (array.ndim - 1)))
    return jnp.concatenate([padded[device::size] for device in range(size)])


def tolerance(dtype):
    return 2e-5 if dtype == jnp.float32 else 2e-2


def check_prefill(size, kernels, dtype, **options):
    q, pages, inputs = problem(size, dtype=dtype, **options)
    rows = inputs.cu_seqlens, inputs.context_lens, inputs.block_tables
    whole = paged_attention(q, pages, *rows, scale=D**-0.5, kernels=kernels)
    queries = by_device(q, size)

    @jax.jit
    def attend(rank, own):
        dealt = deal(inputs, size, rank)
        rows = PagedRows(dealt.context_lens, dealt.block_tables, dealt.cu_seqlens)
        return partial_attention(queries, own, rows, scale=D**-0.5, kernels=kernels)

    parts = [attend(jnp.int32(rank), part(pages, size, rank)) for rank in range(size)]
    out = merged(*map(jnp.stack, zip(*parts, strict=True)))
    wanted = by_device(whole, size).astype(jnp.float32)
    np.testing.assert_allclose(out, wanted, atol=tolerance(dtype))


def check_decode(size, kernels, dtype):
    rows = [(1, context) for context in (0, 1, size - 1, size, 100, 700)]
    q, pages, inputs = problem(size, rows, dtype=dtype)
    inputs = inputs._replace(context_lens=inputs.context_lens.at[0].set(0))
    q = q[: len(rows)]
    of = inputs.cu_seqlens, inputs.context_lens, inputs.block_tables
    options = {"scale": D**-0.5, "kernels": kernels}
    whole = paged_attention(q, pages, *of, max_query_len=1, **options)

    @jax.jit
    def attend(rank, own):
        dealt = own_keys(inputs, size, rank)
        return partial_attention(
            q, own, PagedRows(dealt.context_lens, dealt.block_tables), **options
        )

    parts = [attend(jnp.int32(rank), part(pages, size, rank)) for rank in range(size)]
    out = merged(*map(jnp.stack, zip(*parts, strict=True)))
    np.testing.assert_allclose(out, whole.astype(jnp.float32), atol=tolerance(dtype))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_parts_of_a_prefill_make_the_whole(size):
    check_prefill(size, Kernels("xla"), jnp.float32)


@pytest.mark.parametrize(
    "size", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_parts_of_a_decode_make_the_whole(size):
    check_decode(size, Kernels("xla"), jnp.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [2, 4, 8, 16])
@pytest.mark.parametrize("size", [2, 4])
def test_parts_by_mosaic_make_the_whole(size, heads):
    check_prefill(size, Kernels("mosaic"), jnp.bfloat16, heads=heads)
    check_decode(size, Kernels("mosaic"), jnp.bfloat16)


def test_every_backend_has_both_parts():
    assert set(BACKENDS) == {"mosaic", "xla"}


@pytest.mark.parametrize(
    "size", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_each_key_goes_to_the_page_and_place_of_one_device(size):
    _, _, inputs = problem(size)
    slots, real = by_device(inputs.slot_mapping, size), by_device(inputs.token_ids + 1, size)
    written = [np.asarray(deal(inputs, size, jnp.int32(rank)).slot_mapping) for rank in range(size)]
    assert [sum(place > 0 for place in places) for places in zip(*written, strict=True)] == [
        int(slot > 0) for slot in slots
    ]
    for rank, own in enumerate(written):
        mine = own > 0
        assert (slots[mine] % size == rank).all()
        assert (own[mine] // S == slots[mine] // (S * size)).all()  # the same page
        assert (real[mine] > 0).all()
        assert len(set(own[mine].tolist())) == mine.sum()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_devices_have_equally_many_tokens_and_keys(size):
    _, _, inputs = problem(size)
    ids = [np.asarray(deal(inputs, size, jnp.int32(rank)).token_ids) for rank in range(size)]
    assert len({len(each) for each in ids}) == 1
    everyone = np.sort(np.concatenate(ids))[-len(inputs.token_ids) :]
    assert everyone.tolist() == inputs.token_ids.tolist()
    keys = np.array([own_keys(inputs, size, jnp.int32(rank)).context_lens for rank in range(size)])
    assert (keys.sum(axis=0) == inputs.context_lens).all()
    assert np.ptp(keys, axis=0).max() <= 1


@pytest.mark.parametrize("has_peers", [False, True])
def test_gathered_parts_are_those_of_every_device_in_order(has_peers, monkeypatch):
    size, shape = 4, (4, 3, 2, D)
    rng = np.random.default_rng(0)
    outputs = jnp.asarray(rng.standard_normal(shape), jnp.bfloat16).astype(jnp.float32)
    log_sums = jnp.asarray(rng.standard_normal(shape[:-1]) * 100, jnp.float32)
    log_sums = log_sums.at[0, 0].set(-jnp.inf)
    mesh, rules = with_contexts(make_mesh(size), ShardingRules(), size)
    # Without GPUs XLA sums, as it does where an array is too large for the kernel.
    monkeypatch.setattr(TensorAxis, "sum", lambda axis, x: jax.lax.psum(x, axis.name))
    peers = jnp.zeros((size, 2), jnp.int32) if has_peers else None
    axis = TensorAxis(CONTEXT_AXIS, peers)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=PartitionSpec(rules.context),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    def gathered(own_outputs, own_sums):
        return gather_parts(own_outputs[0], own_sums[0], axis, jnp.bfloat16)

    found = jax.jit(gathered)(outputs, log_sums)
    np.testing.assert_array_equal(found[0], outputs)
    np.testing.assert_array_equal(found[1], jnp.maximum(log_sums, -1e30))
