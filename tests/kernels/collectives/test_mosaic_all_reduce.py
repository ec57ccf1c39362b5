"""Sums over the GPUs of a host: exact on two and four GPUs, compiled for two and four elsewhere."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.kernels.collectives.mosaic.all_reduce import (
    all_reduce,
    all_reduce_norm,
    peer_buffer_bytes,
    supports,
    supports_norm,
)
from jaxinfer.kernels.collectives.mosaic.peer_buffer import MOST_BLOCKS
from jaxinfer.kernels.matmul.mosaic import small
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.rounding import rounded_add
from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving.programs import peer_buffers as peer_buffers
from tests import hlo
from tests.kernels.h200_target import h200_mesh, needs_plugin

_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec("tensor")
_SHAPES = [(2, 4096), (32, 4096), (64, 1024), (96, 4096), (256, 4096), (256, 5120)]
_EPS = 1e-6


def _norm(x, onto, weight, peers):
    total, normal = all_reduce_norm(x[0], peers[0], onto, weight, eps=_EPS)
    return total[None], normal[None]


def _sum(x, onto, _, peers):
    return all_reduce(x[0], peers[0], onto=onto)[None], all_reduce(x[0], peers[0])[None]


def _product(x, weight, onto, peers):
    """In one kernel, and in two."""
    summed = small.project_sum_add(x[0], weight[0], onto, peers[0])
    share = small.project(x[0], weight[0])
    return summed[None], all_reduce(share, peers[0], onto=onto)[None]


@functools.cache
def _jitted(function, mesh):
    second = _SPLIT if function is _product else _WHOLE
    specs = (_SPLIT, second, _WHOLE, _SPLIT)
    outputs = (_SPLIT, _SPLIT)
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=outputs, check_vma=False)
    )


def _draw(seed, shape, mesh):
    """Shares with zeros of both signs, a residual stream and a norm's weight."""
    count, (rows, _) = mesh.size, shape
    rng = np.random.default_rng(seed)
    shares = rng.standard_normal((count, *shape)).astype(jnp.bfloat16)
    shares[:, rows // 2] = rng.choice([-0.0, 0.0], (count, shape[1]))
    onto = rng.standard_normal(shape).astype(jnp.bfloat16)
    weight = rng.standard_normal(shape[1]).astype(jnp.bfloat16)
    whole = NamedSharding(mesh, _WHOLE)
    placed = jax.device_put(shares, NamedSharding(mesh, _SPLIT))
    return placed, jax.device_put(onto, whole), jax.device_put(weight, whole)


def _in_pairs(shares):
    """Their sum in the order of the kernels, which float32's rounding depends on."""
    while len(shares) > 1:
        shares = shares[::2] + shares[1::2]
    return shares[0]


def _bits(x):
    return np.asarray(x).view(np.uint16)


@pytest.fixture(scope="module", params=[2, 4])
def mesh(request):
    if jax.device_count() < request.param:
        pytest.skip(f"needs {request.param} GPUs")
    return make_mesh(request.param, jax.devices()[: request.param])


@pytest.fixture(scope="module")
def peers(mesh):
    boxes = peer_buffers.allocate(peer_buffers.describe_peers(mesh, "tensor"))
    yield boxes.peers
    boxes.memory.delete()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_sums_are_exact_and_equal_on_all_devices(mesh, peers, shape):
    x, onto, weight = _draw(0, shape, mesh)
    exact = _in_pairs(np.asarray(x, np.float32)).astype(jnp.bfloat16)
    total = np.asarray(rounded_add(np.asarray(onto), jnp.asarray(exact)))
    with_onto, alone = _jitted(_sum, mesh)(x, onto, weight, peers)
    summed, normal = _jitted(_norm, mesh)(x, onto, weight, peers)
    for got, expected in [(alone, exact), (with_onto, total), (summed, total)]:
        np.testing.assert_array_equal(np.asarray(got[0]), expected)
    expected = np.asarray(rms_norm(jnp.asarray(total), jnp.asarray(np.asarray(weight)), _EPS))
    np.testing.assert_allclose(
        np.asarray(normal[0], np.float32), expected.astype(np.float32), rtol=0.02
    )
    for got in (alone, with_onto, summed, normal):
        assert (_bits(got) == _bits(got)[0]).all()


@pytest.mark.gpu
def test_sums_of_many_sizes_follow_one_another(mesh, peers):
    """Each uses parts of the peer buffers that others, larger or smaller, have used before."""
    cases = [(shape, *_draw(i, shape, mesh)) for i, shape in enumerate(_SHAPES)]
    first = {}
    order = np.random.default_rng(1).integers(len(cases), size=400)
    outputs = [
        (int(i), _jitted(_norm if i % 2 else _sum, mesh)(*cases[i][1:], peers)) for i in order
    ]
    for i, (got, _) in outputs:
        expected = first.setdefault(i, _bits(got))
        np.testing.assert_array_equal(_bits(got), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2**31 - 20, 2**31 + 20, 2**32 - 20], ids=hex)
def test_sums_stay_right_when_the_numbers_of_exchanges_go_round(mesh, count):
    """Flags are as old as can be: blocks have exchanged by packets alone since."""
    boxes = peer_buffers.allocate(peer_buffers.describe_peers(mesh, "tensor"))
    addresses = _addresses(boxes.memory)
    begin = jax.jit(
        lambda memory: memory.at[:, :MOST_BLOCKS].set(np.uint32(count).astype(np.int32)),
        donate_argnums=0,
        out_shardings=boxes.memory.sharding,
    )
    memory = jax.block_until_ready(begin(boxes.memory))
    assert _addresses(memory) == addresses  # or the kernels would not see the counts
    cases = [_draw(i, shape, mesh) for i, shape in enumerate(_SHAPES)]
    exact = [_in_pairs(np.asarray(x, np.float32)).astype(jnp.bfloat16) for x, _, _ in cases]
    for i in np.random.default_rng(2).integers(len(cases), size=60):
        _, alone = _jitted(_sum, mesh)(*cases[i], boxes.peers)
        for got in np.asarray(alone):
            np.testing.assert_array_equal(_bits(got), _bits(exact[i]))
    memory.delete()


def _addresses(memory):
    shards = memory.addressable_shards
    return {shard.device.id: shard.data.unsafe_buffer_pointer() for shard in shards}


@pytest.mark.gpu
def test_a_gpu_whose_partner_does_not_come_returns_nan_in_time(mesh):
    """One GPU is given the peer buffers of two: the other's address is its own second one."""
    device = mesh.devices.flat[0]
    words = peer_buffer_bytes(2) // 4
    memory = jax.block_until_ready(jax.device_put(jnp.zeros((2, words), jnp.int32), device))
    base = np.array([memory.unsafe_buffer_pointer()], np.uint64)
    both = np.concatenate([base, base + np.uint64(4 * words)])
    peers = jax.device_put(both.view(np.int32).reshape(2, 2), device)
    run = jax.jit(all_reduce)
    for rows in (2, 256):  # as packets, and as lines
        x = jax.device_put(jnp.ones((rows, 4096), jnp.bfloat16), device)
        start = time.monotonic()
        # Enough of them that each could not take its time.
        for _ in range(20):
            total = run(x, peers)
        assert np.isnan(np.asarray(total, np.float32)).all()
        assert time.monotonic() - start < 40
    memory.delete()


@pytest.mark.gpu
def test_a_product_gives_what_its_sum_by_itself_does(mesh, peers):
    """To the bit, on all devices, however many calls of other shapes came before."""
    rng = np.random.default_rng(0)
    cases = []
    for B, size, features in [(1, 640, 1024), (2, 2048, 4096), (8, 6144, 4096), (16, 1024, 5120)]:
        shapes = [(mesh.size, B, size), (mesh.size, features, size), (B, features)]
        x, weight, onto = (rng.standard_normal(s).astype(jnp.bfloat16) for s in shapes)
        split, whole = NamedSharding(mesh, _SPLIT), NamedSharding(mesh, _WHOLE)
        cases.append([jax.device_put(x, split), jax.device_put(weight, split)])
        cases[-1].append(jax.device_put(onto, whole))
        exact = np.einsum("dbi,doi->bo", x.astype(np.float64), weight.astype(np.float64))
        got, _ = _jitted(_product, mesh)(*cases[-1], peers)
        error = np.asarray(got[0], np.float64) - (onto.astype(np.float64) + exact)
        assert np.linalg.norm(error) < 6e-3 * np.linalg.norm(exact)
    for i in rng.integers(len(cases), size=100):
        got, expected = _jitted(_product, mesh)(*cases[i], peers)
        np.testing.assert_array_equal(_bits(got), _bits(expected))
        assert (_bits(got) == _bits(got)[0]).all()


@needs_plugin
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("shape", [(2, 4096), (256, 5120)], ids=str)
def test_both_compile_for_h200s(devices, shape):
    mesh = h200_mesh(devices)
    described = [((devices, *shape), _SPLIT), (shape, _WHOLE), (shape[1:], _WHOLE)]
    arguments = [
        jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for size, spec in described
    ]
    arguments.append(peer_buffers.describe_peers(mesh, "tensor"))
    for function in (_sum, _norm):
        traced = _jitted(function, mesh).trace(*arguments)
        text = traced.lower(lowering_platforms=("cuda",)).compile().as_text()
        assert "all_reduce" in text
        assert "all-reduce" not in text


@needs_plugin
@pytest.mark.parametrize("devices", [2, 4])
def test_a_product_and_its_sum_are_one_kernel(devices):
    mesh = h200_mesh(devices)

    def run(x, weight, onto, peers):
        return small.project_sum_add(x[0], weight[0], onto, peers[0])[None]

    specs = (_SPLIT, _SPLIT, _WHOLE, _SPLIT)
    described = [(devices, 2, 1600), (devices, 5120, 1600), (2, 5120)]
    arguments = [
        jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for size, spec in zip(described, specs[:3], strict=True)
    ]
    arguments.append(peer_buffers.describe_peers(mesh, "tensor"))
    mapped = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=_SPLIT, check_vma=False)
    traced = jax.jit(mapped).trace(*arguments)
    text = traced.lower(lowering_platforms=("cuda",)).compile().as_text()
    assert hlo.mosaic_kernels(text) == {"small_summed": 1}
    assert "all-reduce" not in text


def test_products_are_summed_by_two_or_four_gpus_for_few_rows():
    assert small.supports_sum(2, (4096, 2048), jnp.bfloat16, 2)
    assert small.supports_sum(16, (8192, 640), jnp.bfloat16, 4)
    assert not small.supports_sum(2, (4096, 2048), jnp.bfloat16, 8)
    assert not small.supports_sum(2, (8256, 2048), jnp.bfloat16, 2)
    assert not small.supports_sum(24, (4096, 2048), jnp.bfloat16, 2)
    x, weight, onto = (jnp.zeros(s, jnp.bfloat16) for s in ((2, 64), (128, 64), (2, 128)))
    with pytest.raises(ValueError, match="sums of products take 2 or 4 GPUs"):
        small.project_sum_add(x, weight, onto, jnp.zeros((3, 2), jnp.int32))


def test_what_is_supported():
    assert supports(256 * 4096, jnp.bfloat16, 2)
    assert supports(1024, jnp.float16, 4)
    assert not supports(1024, jnp.float32, 2)
    assert not supports(1024, jnp.bfloat16, 1)
    assert not supports(1024, jnp.bfloat16, 3)
    assert not supports(1000, jnp.bfloat16, 2)
    assert not supports(2048 * 4096, jnp.bfloat16, 2)


def test_a_norm_takes_whole_rows():
    assert supports_norm((256, 5120), jnp.bfloat16, 4)
    assert not supports_norm((256, 2560), jnp.bfloat16, 2)  # two and a half lines
    assert supports(256 * 2560, jnp.bfloat16, 2)
    assert not supports_norm((256, 8192), jnp.bfloat16, 2)  # more than all blocks hold
    assert not supports_norm((3, 4, 1024), jnp.bfloat16, 2)
