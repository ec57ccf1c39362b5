"""The projection ops: what they compute in plain XLA, and when kernels take over."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.int8 import quantize
from jaxinfer.kernels.matmul import op as projections
from jaxinfer.kernels.matmul.mosaic import large, medium, medium_codes, small
from jaxinfer.kernels.matmul.mosaic.small_plan import MOST_ROWS
from jaxinfer.kernels.matmul.op import Linear, ResidualStream, linear_of
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.xla import linear
from jaxinfer.kernels.norms.mosaic import add_norm, add_norm_codes, silu_mul
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import Kernels
from jaxinfer.kernels.rounding import rounded_add

E, F = 128, 192


def _draw(*shape, dtype=jnp.bfloat16, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray((rng.standard_normal(shape) / shape[-1] ** 0.5).astype(dtype))


def _refuse(*_, **__):
    raise AssertionError("a kernel was chosen")


@pytest.fixture
def _no_kernels(monkeypatch):
    for name in ("norm_project", "norm_gated", "project_add"):
        monkeypatch.setattr(small, name, _refuse)


@pytest.mark.usefixtures("_no_kernels")
@pytest.mark.parametrize(
    ("shape", "dtype", "backend"),
    [
        ((2, E), "bfloat16", "xla"),
        ((2, E), "bfloat16", "triton"),
        ((2, E), "float16", "mosaic"),
        pytest.param((3, E), "bfloat16", "mosaic", marks=pytest.mark.slow("alone")),
        pytest.param((2, 4, E), "bfloat16", "mosaic", marks=pytest.mark.slow("alone")),
    ],
)
def test_without_kernels_every_operation_rounds(shape, dtype, backend):
    """Other backends, dtypes and row counts take the plain operations, one by one."""
    x, norm = _draw(*shape, dtype=dtype) * 8, _draw(E, dtype=dtype) + 1
    gate, up = _draw(F, E, dtype=dtype), _draw(F, E, dtype=dtype, seed=1)
    down = _draw(E, F, dtype=dtype, seed=2)

    @jax.jit
    def ops(x):
        residual = ResidualStream(x[::-1], x)
        residual, projected = projections.norm_project(
            residual, norm, (Linear(gate), Linear(up)), eps=1e-6, kernels=Kernels(backend)
        )
        same, gated = projections.norm_gated(
            residual, norm, Linear(gate), Linear(up), eps=1e-6, kernels=Kernels(backend)
        )
        added = projections.project_add(gated, Linear(down), same, kernels=Kernels(backend))
        return jnp.concatenate(projected, axis=-1), gated, added.summed()

    given, x = x, x[::-1] + x
    hidden = rms_norm(x, norm, 1e-6)
    opened, value = linear(hidden, gate), linear(hidden, up)
    gated = jax.nn.silu(opened.astype(jnp.float32)).astype(dtype) * value
    added = x + linear(gated, down)
    projected = jnp.concatenate([opened, value], axis=-1)
    for got, expected in zip(ops(given), (projected, gated, added), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_kernels_take_few_rows_on_mosaic(monkeypatch):
    x, norm, gate, down = _draw(2, E), _draw(E), Linear(_draw(F, E)), Linear(_draw(E, F))
    inner = jnp.ones((2, F), x.dtype)
    monkeypatch.setattr(small, "norm_project", lambda *_, eps: (inner,))
    monkeypatch.setattr(small, "norm_gated", lambda *_, eps: inner + 1)
    monkeypatch.setattr(small, "project_add", lambda *_: x)
    residual = ResidualStream(x)
    residual, (projected,) = projections.norm_project(
        residual, norm, (gate,), eps=1e-6, kernels=Kernels("mosaic")
    )
    residual, gated = projections.norm_gated(
        residual, norm, gate, gate, eps=1e-6, kernels=Kernels("mosaic")
    )
    added = projections.project_add(_draw(2, F), down, ResidualStream(x), kernels=Kernels("mosaic"))
    assert projected is inner
    assert (gated == inner + 1).all()
    assert added.x is x
    assert added.delta is None


@pytest.mark.parametrize(("rows", "backend"), [(255, "mosaic"), (1024, "xla"), (1024, "triton")])
def test_additions_are_performed_at_once_unless_many_rows_have_a_kernel(rows, backend):
    x = _draw(rows, 256)
    residual = projections.begin(x, kernels=Kernels(backend))
    assert residual.delta is None
    residual = projections.add(residual, x, kernels=Kernels(backend))
    assert residual.delta is None
    np.testing.assert_array_equal(residual.x, x + x)


def test_with_many_rows_the_norms_kernel_performs_the_addition(monkeypatch):
    def added(x, delta, weight, other, *, eps):
        assert other is None
        return x + delta, x * 2

    monkeypatch.setattr(add_norm, "add_norm", added)
    x, weight = _draw(256, 256), _draw(256, 256)
    residual = projections.begin(x, kernels=Kernels("mosaic"))
    assert jax.tree.structure(residual) == jax.tree.structure(ResidualStream(x, x))
    settled, (product,) = projections.norm_project(
        residual, x[0], (Linear(weight),), eps=1e-6, kernels=Kernels("mosaic")
    )
    np.testing.assert_array_equal(settled.x, x)
    np.testing.assert_array_equal(product, linear(x * 2, weight))
    left = projections.project_add(product, Linear(weight), settled, kernels=Kernels("mosaic"))
    assert left.x is settled.x
    np.testing.assert_array_equal(left.delta, linear(product, weight))
    both = Linear(weight), Linear(weight)
    settled, _ = projections.norm_gated(left, x[0], *both, eps=1e-6, kernels=Kernels("mosaic"))
    np.testing.assert_array_equal(settled.x, x + left.delta)
    np.testing.assert_array_equal(left.summed(), settled.x)


def test_the_norms_kernel_adds_the_other_devices_share(monkeypatch):
    monkeypatch.setattr(TensorAxis, "swap", lambda self, x: x * 2)
    axis = TensorAxis("tensor", swaps=True)
    x, share, weight = _draw(256, 256), _draw(256, 256, seed=1), _draw(64, 256)
    residual = projections.add_sum(ResidualStream(x), share, axis, kernels=Kernels("mosaic"))
    assert residual.delta is share
    np.testing.assert_array_equal(residual.other, share * 2)
    np.testing.assert_array_equal(residual.summed(), rounded_add(x, rounded_add(share, share * 2)))
    begun = projections.begin_sum(share, axis, kernels=Kernels("mosaic"))
    assert jax.tree.structure(begun) == jax.tree.structure(residual)
    np.testing.assert_array_equal(begun.summed(), rounded_add(share, share * 2))
    monkeypatch.setattr(
        add_norm, "add_norm", lambda x, delta, weight, other, *, eps: (x, delta - other)
    )
    _, (product,) = projections.norm_project(
        residual, x[0], (Linear(weight),), eps=1e-6, kernels=Kernels("mosaic")
    )
    np.testing.assert_array_equal(product, linear(share - share * 2, weight))


def test_in_long_prefills_a_kernel_multiplies_gate_and_up(monkeypatch):
    monkeypatch.setattr(add_norm, "supports", lambda *_: False)
    monkeypatch.setattr(silu_mul, "silu_mul", lambda gate, up: gate - up)
    x, gate, up = _draw(1024, 256), _draw(512, 256), _draw(512, 256, seed=1)
    both = Linear(gate), Linear(up)
    _, inner = projections.norm_gated(
        ResidualStream(x), x[0], *both, eps=1e-6, kernels=Kernels("mosaic")
    )
    hidden = rms_norm(x, x[0], 1e-6)
    np.testing.assert_array_equal(inner, linear(hidden, gate) - linear(hidden, up))


def test_some_rows_take_the_kernels_that_read_several_weights(monkeypatch):
    def repeated(x, weight):
        return jnp.tile(x, (1, len(weight) // x.shape[1]))

    monkeypatch.setattr(
        medium, "project", lambda x, weights: tuple(repeated(x, w) for w in weights)
    )
    monkeypatch.setattr(medium, "gated", lambda x, gate, up: repeated(x, gate))
    x, norm = _draw(40, 1024), _draw(1024) + 1
    k, q, up = (Linear(jnp.zeros((n, 1024), x.dtype)) for n in (1024, 2048, 3072))
    hidden = rms_norm(x, norm, 1e-6)
    ops = {"eps": 1e-6, "kernels": Kernels("mosaic")}
    _, projected = projections.norm_project(ResidualStream(x), norm, (q, k, k), **ops)
    _, inner = projections.norm_gated(ResidualStream(x), norm, up, up, **ops)
    assert len(projected) == 3
    for got in (*projected, inner):
        np.testing.assert_array_equal(got[:, -1024:], hidden)
    # Few features by themselves, and fewer or more rows, are XLA's: zeros here.
    _, (other,) = projections.norm_project(ResidualStream(x), norm, (k,), **ops)
    _, few = projections.norm_gated(ResidualStream(x[:24]), norm, up, up, **ops)
    assert not other.any()
    assert not few.any()


def test_a_product_by_itself_takes_the_kernel_for_its_rows(monkeypatch):
    monkeypatch.setattr(medium, "project", lambda x, weights: tuple(-linear(x, w) for w in weights))
    monkeypatch.setattr(small, "project", lambda x, weight: 2 * linear(x, weight))
    weight = _draw(4096, 2048)
    for rows, factor in ((2, 2), (24, 1), (64, -1), (256, 1)):
        x = _draw(rows, 2048)
        got = projections.project(x, Linear(weight), kernels=Kernels("mosaic"))
        np.testing.assert_array_equal(got, factor * linear(x, weight))
        np.testing.assert_array_equal(projections.project(x, Linear(weight)), linear(x, weight))


def test_few_rows_are_summed_over_devices_by_their_products_kernel(monkeypatch):
    monkeypatch.setattr(small, "supports_sum", lambda B, *_: B <= MOST_ROWS)
    monkeypatch.setattr(
        small, "project_sum_add", lambda x, weight, residual, peers: residual + linear(x, weight)
    )
    monkeypatch.setattr(TensorAxis, "size", 2)
    monkeypatch.setattr(TensorAxis, "sum", lambda self, x, onto=None: x * 2)
    axis = TensorAxis("tensor", jnp.zeros((2, 2), jnp.int32))
    weight = _draw(1024, 256)
    for rows in (2, MOST_ROWS, 24):
        x, before = _draw(rows, 256), _draw(rows, 1024)
        begun = projections.begin_sum(before, axis, kernels=Kernels("mosaic"))
        got = projections.project_sum_add(
            x, Linear(weight), ResidualStream(before), axis, kernels=Kernels("mosaic")
        )
        # A layer returns what it is given, so that all layers are traced as one.
        assert jax.tree.structure(begun) == jax.tree.structure(got)
        if rows <= MOST_ROWS:
            np.testing.assert_array_equal(got.summed(), before + linear(x, weight))
            np.testing.assert_array_equal(begun.summed(), before * 2)
        else:
            np.testing.assert_array_equal(got.delta, linear(x, weight))
    stream = ResidualStream(before[:2])
    plain = projections.project_sum_add(_draw(2, 256), Linear(weight), stream, axis)
    np.testing.assert_array_equal(plain.x, linear(_draw(2, 256), weight) * 2)


def _projected(shape, features, backend, dtype="bfloat16"):
    x, norm = _draw(*shape, E, dtype=dtype), _draw(E, dtype=dtype) + 1
    weights = [_draw(n, E, dtype=dtype, seed=n) for n in features]
    linears = [Linear(weight) for weight in weights]
    _, got = projections.norm_project(
        ResidualStream(x), norm, linears, eps=1e-6, kernels=Kernels(backend)
    )
    return got, [linear(rms_norm(x, norm, 1e-6), weight) for weight in weights]


def test_products_that_xla_would_merge_stay_one():
    (merged,), separate = _projected((24,), (256, 64, 64), "mosaic")
    np.testing.assert_array_equal(merged, jnp.concatenate(separate, axis=-1))


@pytest.mark.parametrize(
    ("shape", "features", "backend", "dtype"),
    [
        ((24,), (256, 64, 64), "xla", "bfloat16"),
        ((24,), (256, 64, 64), "triton", "bfloat16"),
        ((24,), (256, 64, 64), "mosaic", "float32"),
        ((2, 12), (256, 64, 64), "mosaic", "bfloat16"),
        ((24,), (192, 96, 96), "mosaic", "bfloat16"),  # Triton would need a copy of these weights.
        ((128,), (256, 64, 64), "mosaic", "bfloat16"),  # cuBLAS would, of any.
    ],
)
def test_other_products_are_separate(shape, features, backend, dtype):
    got, expected = _projected(shape, features, backend, dtype)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_projection_crosses_jit_and_can_be_cut_to_some_outputs():
    weight = _draw(F, E)
    linear = linear_of({"q_proj": weight}, "q_proj")
    first = jax.jit(lambda linear: linear.of_outputs(lambda leaf: leaf[:8]))(linear)
    np.testing.assert_array_equal(first.weight, weight[:8])
    assert jax.tree.leaves(linear) == [weight]
    shapes = jax.eval_shape(lambda linear: linear, linear)
    assert shapes.weight.shape == (F, E)


def _int8(*shape, seed=0):
    weight, scale = quantize(_draw(*shape, dtype=jnp.float32, seed=seed))
    return linear_of({"q_proj": {"weight": weight, "scale": scale}}, "q_proj")


@pytest.mark.usefixtures("_no_kernels")
@pytest.mark.parametrize(
    ("rows", "dtype", "backend"),
    [
        pytest.param(2, "float32", "xla", marks=pytest.mark.slow("alone")),
        (3, "bfloat16", "xla"),
        (3, "bfloat16", "mosaic"),
        (12, "bfloat16", "mosaic"),
        (264, "bfloat16", "mosaic"),
    ],
)
def test_integers_are_multiplied_as_the_plain_weight_that_they_stand_for(
    rows, dtype, backend, monkeypatch
):
    """Bit for bit, by XLA on any backend, where Mosaic has no kernels for the rows."""
    for name in ("project", "gated"):
        monkeypatch.setattr(medium, name, _refuse)
    x, norm = _draw(rows, E, dtype=dtype), _draw(E, dtype=dtype) + 1
    linears = [_int8(F, E), _int8(F, E, seed=1), _int8(E, F, seed=2)]

    def ops(x, linears, kernels):
        gate, up, down = linears
        residual, projected = projections.norm_project(
            ResidualStream(x), norm, (gate, up), eps=1e-6, kernels=kernels
        )
        residual, gated = projections.norm_gated(
            residual, norm, gate, up, eps=1e-6, kernels=kernels
        )
        added = projections.project_add(gated, down, residual, kernels=kernels)
        return *projected, gated, added.summed()

    run = jax.jit(ops, static_argnums=2)
    plain = [Linear(each.matrix(dtype)) for each in linears]
    assert all(each.weight.dtype == dtype for each in plain)
    expected = run(x, plain, Kernels("xla"))
    for got, wanted in zip(run(x, linears, Kernels(backend)), expected, strict=True):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("inputs", [None, "group", "token"])
def test_few_rows_of_codes_go_to_kernels_that_round_inputs_by_groups_alone(inputs, monkeypatch):
    """What a kernel can't round is normed and rounded by XLA, and the kernel applies no norm."""
    taken = {}

    def record(name, x, norm, *weights, **_):
        several = isinstance(weights[0], list)
        taken[name] = x, norm, weights[0] if several else weights
        product = jnp.zeros((len(x), F), x.dtype)
        return (product,) if several else product

    for name in ("norm_project", "norm_gated"):
        monkeypatch.setattr(small, name, functools.partial(record, name))

    def project_add(x, weight, residual):
        taken["project_add"] = x, None, [weight]
        return residual

    monkeypatch.setattr(small, "project_add", project_add)
    x, norm = _draw(2, E), _draw(E) + 1
    linear = QuantizedLinear(
        jnp.ones((F, E), jnp.float8_e4m3fn),
        jnp.ones(F if inputs == "token" else (F // 64, E // 128)),
        inputs=inputs,
    )
    by_xla, kernels = inputs == "token", Kernels("mosaic")
    projections.norm_project(ResidualStream(x), norm, (linear,), eps=1e-6, kernels=kernels)
    projections.norm_gated(ResidualStream(x), norm, linear, linear, eps=1e-6, kernels=kernels)
    projections.project_add(x, linear, ResidualStream(_draw(2, F)), kernels=kernels)
    assert set(taken) == {"norm_project", "norm_gated", "project_add"}
    given, left, [weight] = taken.pop("project_add")
    np.testing.assert_array_equal(given, linear.rounded_inputs(x) if by_xla else x)
    assert weight.weight is linear.weight
    for given, left, weights in taken.values():
        normed = linear.rounded_inputs(rms_norm(x, norm, 1e-6))
        np.testing.assert_array_equal(given, normed if by_xla else x)
        assert (left is None) == by_xla
        assert all(weight is linear for weight in weights)


def test_rows_of_codes_go_to_their_kernels(monkeypatch):
    monkeypatch.setattr(add_norm, "supports", lambda *_: False)
    for module in (medium_codes, large):
        monkeypatch.setattr(module, "project", lambda x, linears: tuple(-x[:, :F] for _ in linears))
        gated = lambda x, gate, up: x * gate.scale[0, 0].astype(x.dtype)  # noqa: E731
        monkeypatch.setattr(module, "gated", gated)
    ones = jnp.ones((256, 256), jnp.float8_e4m3fn)
    gate, up = (QuantizedLinear(ones, jnp.full((2, 2), s), inputs="group") for s in (2.0, 1.0))
    cases = ((512, "group", True), (248, "group", True), (64, None, True), (512, None, False))
    for rows, inputs, is_taken in cases:
        linears = [dataclasses.replace(each, inputs=inputs) for each in (gate, up)]
        x = ResidualStream(_draw(rows, 256))
        hidden = rms_norm(x.x, x.x[0], 1e-6)
        ops = {"eps": 1e-6, "kernels": Kernels("mosaic")}
        _, products = projections.norm_project(x, x.x[0], linears, **ops)
        _, inner = projections.norm_gated(x, x.x[0], *linears, **ops)
        product = projections.project(hidden, linears[0], kernels=Kernels("mosaic"))
        for got in (*products, product):
            assert np.array_equal(got[:, :F], -hidden[:, :F]) == is_taken
        assert np.array_equal(inner, hidden * 2) == is_taken


def _of_blocks(size, **changes):
    codes, scale = jnp.ones((size, size), jnp.float8_e4m3fn), jnp.ones((size // 128,) * 2)
    linear = QuantizedLinear(codes, scale, inputs="group")
    return dataclasses.replace(linear, **changes)


@pytest.fixture
def normed_codes(monkeypatch):
    """Kernels that return what they are given: a norm's codes are its stream, twice."""

    def write(x, norm, delta, other, *, eps):
        new = [each for each in (delta, other) if each is not None]
        total, padding = sum(new, x), ((0, -len(x) % 8), (0, 0))
        return total, jnp.pad(total * 2, padding), jnp.pad(norm[None], ((0, 3), (0, 0)))

    def multiply(codes, scale, linears, dtype, *, matrices=1):
        assert scale.shape == (4, 512)
        return tuple((codes * matrices).astype(dtype) for _ in linears[::matrices])

    monkeypatch.setattr(add_norm_codes, "add_norm_codes", write)
    for module in (medium_codes, large):
        monkeypatch.setattr(module, "multiply", multiply)
        monkeypatch.setattr(module, "project", lambda x, linears: tuple(x for _ in linears))
        monkeypatch.setattr(module, "gated", lambda x, *_: x)


@pytest.mark.usefixtures("normed_codes")
@pytest.mark.parametrize("rows", [17, 24, 200, 255, 256, 1024])
@pytest.mark.parametrize("terms", [1, 2, 3])
def test_products_of_codes_read_codes_that_the_norms_kernel_wrote(rows, terms):
    """With what is to be added, or without: the residual is summed, and no norm is written."""
    x, *new = (_draw(rows, 512, seed=seed) for seed in range(terms))
    residual = ResidualStream(x, *new[:1], other=new[1] if new[1:] else None)
    total = sum(new, x)
    ops = {"eps": 1e-6, "kernels": Kernels("mosaic")}
    linear = _of_blocks(512)
    settled, products = projections.norm_project(residual, x[0], (linear, linear), **ops)
    assert len(products) == 2
    for product in products:
        np.testing.assert_array_equal(product, total * 2)
    np.testing.assert_array_equal(settled.summed(), total)
    settled, inner = projections.norm_gated(residual, x[0], linear, linear, **ops)
    np.testing.assert_array_equal(inner, total * 4)
    np.testing.assert_array_equal(settled.summed(), total)


@pytest.mark.usefixtures("normed_codes")
@pytest.mark.parametrize(
    ("linear", "rows", "E", "backend"),
    [
        (_of_blocks(512, inputs=None), 64, 512, "mosaic"),
        (_of_blocks(512), 260, 512, "mosaic"),  # which no kernel multiplies
        (_of_blocks(512), 64, 512, "xla"),
        (_of_blocks(256), 64, 256, "mosaic"),  # whose norm has none
    ],
)
def test_other_norms_are_written_as_they_are(linear, rows, E, backend, monkeypatch):
    monkeypatch.setattr(add_norm_codes, "add_norm_codes", _refuse)
    monkeypatch.setattr(add_norm, "supports", lambda *_: False)
    x, kernels = ResidualStream(_draw(rows, E)), Kernels(backend)
    _, products = projections.norm_project(x, x.x[0], (linear,), eps=1e-6, kernels=kernels)
    assert products[0].shape[0] == rows
    projections.norm_gated(x, x.x[0], linear, linear, eps=1e-6, kernels=kernels)
    assert projections.project_add(x.x, linear, x, kernels=kernels).delta is None


@pytest.mark.usefixtures("normed_codes")
def test_a_sum_over_devices_keeps_the_norm_that_follows_it(monkeypatch):
    from jaxinfer.kernels.collectives.mosaic import all_reduce

    monkeypatch.setattr(add_norm_codes, "add_norm_codes", _refuse)
    monkeypatch.setattr(
        all_reduce, "all_reduce_norm", lambda share, peers, x, norm, *, eps: (x + share, x)
    )
    x = _draw(64, 512)
    residual = ResidualStream(x, x, peers=jnp.zeros((2, 2), jnp.int32))
    linear, kernels = _of_blocks(512), Kernels("mosaic")
    _, (product,) = projections.norm_project(residual, x[0], (linear,), eps=1e-6, kernels=kernels)
    np.testing.assert_array_equal(product, x)


@pytest.mark.usefixtures("normed_codes")
@pytest.mark.parametrize("rows", [17, 64, 256])
def test_what_products_of_codes_return_is_added_by_the_norm(rows):
    x, kernels = _draw(rows, 512), Kernels("mosaic")
    residual = ResidualStream(x, x)
    left = projections.project_add(x, _of_blocks(512), residual, kernels=kernels)
    np.testing.assert_array_equal(left.x, x + x)
    np.testing.assert_array_equal(left.delta, x)


def test_a_projection_of_integers_is_cut_looked_up_and_traced_with_its_scales():
    linear = _int8(F, E)
    assert (linear.shape, linear.weight.dtype, linear.scale.shape) == ((F, E), jnp.int8, (F,))
    matrix = linear.matrix(jnp.float32)
    cut = jax.jit(lambda linear: linear.of_outputs(lambda leaf: leaf[8:24]))(linear)
    np.testing.assert_array_equal(cut.matrix(jnp.float32), matrix[8:24])
    ids = jnp.array([[3, 0], [F - 1, F + 5]])
    found = linear.rows(ids)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, matrix[jnp.minimum(ids, F - 1)])
