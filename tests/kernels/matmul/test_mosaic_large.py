"""Products of block-scaled codes of many rows: beside float64, of codes and scales as they are."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels import fp8
from jaxinfer.kernels.matmul.mosaic import large, large_plan
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantize_groups
from jaxinfer.kernels.matmul.mosaic.large_plan import LargeConfig
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic import in_flight, registers
from tests.kernels.h200_target import compile_for_h200, needs_plugin


def draw(outputs, inputs, seed=0):
    """A weight ``[O, I]`` whose codes take every value, with scales far apart."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 255, (outputs, inputs)).astype(np.uint8)
    codes[codes % 128 == 127] = 0  # which are NaN
    scale = np.exp(rng.normal(size=(outputs // GROUP, inputs // GROUP))).astype(np.float32)
    return QuantizedLinear(
        jnp.asarray(codes.view(jnp.float8_e4m3fn)),
        jnp.asarray(scale / (100 * inputs**0.5)),
        inputs="group",
    )


def _rows(M, size, seed=1):
    """Inputs whose groups have scales of their own."""
    rng = np.random.default_rng(seed)
    groups = rng.standard_normal((M, size // GROUP, GROUP))
    groups *= np.exp(rng.normal(size=(M, size // GROUP, 1)))
    return jnp.asarray(groups.reshape(M, size).astype(jnp.bfloat16))


def _exact(x, linear):
    """In float64, group by group."""
    codes, of_rows = (np.asarray(each, np.float64) for each in linear.quantized_inputs(x))
    weight, of_blocks = (np.asarray(each, np.float64) for each in (linear.weight, linear.scale))
    sums = 0.0
    for group in range(codes.shape[1]):
        of_features = np.repeat(of_blocks[:, group], GROUP)
        product = codes[:, group] @ weight[:, group * GROUP :][:, :GROUP].T
        sums = sums + product * of_rows[:, group, None] * of_features
    return sums


def _check(got, exact):
    error = np.linalg.norm(np.asarray(got, np.float64) - exact) / np.linalg.norm(exact)
    assert error < 4e-3


def _check_all(M, size, config=None):
    """Both products, of several outputs, beside float64."""
    x, linears = _rows(M, size), [draw(outputs, size, seed=outputs) for outputs in (128, 256)]
    project = jax.jit(functools.partial(large.project, config=config))
    for got, linear in zip(project(x, linears), linears, strict=True):
        _check(got, _exact(x, linear))
    gate, up = draw(256, size, seed=5), linears[1]
    opened = _exact(x, gate)
    got = jax.jit(functools.partial(large.gated, config=config))(x, gate, up)
    _check(got, opened / (1 + np.exp(-opened)) * _exact(x, up))


@pytest.mark.gpu
@pytest.mark.parametrize("M", [136, 200, 256, 264, 1000, 2048, 5000])
@pytest.mark.parametrize("size", [1024, GROUP, 3 * GROUP])
def test_products_match_fp64(M, size):
    _check_all(M, size)


_SIZES = {
    "two_by_two": LargeConfig(),
    "rows_shared": LargeConfig(5, 1, 2),
    "nothing_shared": LargeConfig(3, 1, 1, swath=3),
    "both_shared": LargeConfig(2, 2, 2),
}
if registers.can_be_moved():
    _SIZES["three_consumers"] = LargeConfig(4, consumers=3)
    _SIZES["in_turn"] = LargeConfig(in_turn=True)
    _SIZES["in_turn_rows_shared"] = LargeConfig(2, 1, 2, in_turn=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", _SIZES)
@pytest.mark.parametrize("size", [1024, 3 * GROUP])
def test_sizes_change_no_result(name, size):
    x, linears = _rows(712, size), [draw(outputs, size, seed=outputs) for outputs in (384, 256)]
    expected = jax.jit(large.project)(x, linears)
    got = jax.jit(functools.partial(large.project, config=_SIZES[name]))(x, linears)
    for values, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(*(np.asarray(each, np.float32) for each in (values, wanted)))


_HALVES = LargeConfig(share_weights=1, splits=2, in_turn=registers.can_be_moved())


@pytest.mark.gpu
@pytest.mark.parametrize("M", [72, 136, 256])
@pytest.mark.parametrize("size", [2 * GROUP, 6 * GROUP, 8192])
def test_halves_of_a_contraction_match_fp64(M, size):
    x, linears = _rows(M, size), [draw(outputs, size, seed=outputs) for outputs in (384, 256)]
    got = jax.jit(functools.partial(large.project, config=_HALVES))(x, linears)
    for values, linear in zip(got, linears, strict=True):
        _check(values, _exact(x, linear))


@pytest.mark.gpu
def test_a_row_is_the_same_among_others():
    """As a sequence's prefill is, whatever is prefilled beside it."""
    x, linears = _rows(2048, 1024), [draw(256, 1024)]
    run = jax.jit(large.project)
    (many,), (few,) = run(x, linears), run(x[640:1000], linears)
    _equal(many[640:1000], few)


@needs_plugin
@pytest.mark.parametrize("name", _SIZES)
@pytest.mark.parametrize("matrices", [1, 2])
def test_no_value_lies_in_local_memory(name, matrices, monkeypatch, capfd):
    _check_local_memory(5 * GROUP, matrices, _SIZES[name], monkeypatch, capfd)


@needs_plugin
def test_no_value_of_halves_lies_in_local_memory(monkeypatch, capfd):
    _check_local_memory(6 * GROUP, 1, _HALVES, monkeypatch, capfd, rows=392)


def _check_local_memory(size, matrices, config, monkeypatch, capfd, rows=776):
    """Sizes that no other test has: what is compiled already says nothing."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")

    def product(codes, scale, *linears):
        options = {"matrices": matrices, "config": config}
        return large.multiply(codes, scale, linears, jnp.bfloat16, **options)

    codes = _shape(rows, size, dtype=fp8.FP8)
    scale = _shape(size // GROUP, -(-rows // 64) * 64, dtype=jnp.float32)
    blocks = _shape(5, size // GROUP, dtype=jnp.float32)
    linear = QuantizedLinear(_shape(640, size, dtype=fp8.FP8), blocks, inputs="group")
    compile_for_h200(product, codes, scale, linear, linear)
    spilled = re.findall(r"(\d+) bytes spill stores", "".join(capfd.readouterr()))
    assert spilled
    assert set(spilled) == {"0"}


def _shape(*shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("M", "size", "config"),
    [
        (512, 256, LargeConfig(7)),
        (512, 256, LargeConfig(1)),
        (512, 256, LargeConfig(consumers=4)),
        (516, 256, LargeConfig()),
        (512, 192, LargeConfig()),
        (512, 384, LargeConfig(splits=2)),
        (512, 512, LargeConfig(splits=4)),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(M, size, config):
    codes, scale = jnp.zeros((M, size), fp8.FP8), jnp.ones((size // GROUP, -(-M // 64) * 64))
    weight = QuantizedLinear(jnp.zeros((128, size), fp8.FP8), jnp.ones((1, size // GROUP)))
    with pytest.raises(ValueError, match="does not fit"):
        large.multiply(codes, scale, [weight], "bfloat16", config=config)
    with pytest.raises(ValueError, match="no configuration"):
        large.multiply(codes, scale, [weight], "bfloat16")


def test_scales_without_room_for_whole_loads_are_refused():
    codes = jnp.zeros((200, 256), fp8.FP8)
    with pytest.raises(ValueError, match="multiple of 64"):
        large.multiply(codes, jnp.ones((2, 200)), [draw(128, 256)], "bfloat16")


def test_blocks_of_128_outputs_alone_are_taken():
    linear = draw(256, 256)
    of_64 = dataclasses.replace(linear, scale=jnp.ones((4, 2)))
    of_one = dataclasses.replace(linear, scale=jnp.ones((256, 2)))
    assert large.supports(512, "bfloat16", [linear, linear])
    for others in ([of_64], [of_one], [linear, of_one], [dataclasses.replace(linear, inputs=None)]):
        assert not large.supports(512, "bfloat16", others)
    assert not large.supports(512, "float32", [linear])
    with pytest.raises(ValueError, match="multiple of 8"):
        large.project(jnp.zeros((500, 256), jnp.bfloat16), [linear])


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels in Pallas's interpreter, which knows no accumulator that it did not make itself."""
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(plgpu, "wgmma", _wgmma)
    monkeypatch.setattr(pl, "run_scoped", lambda run, *kinds: run(*(_Sums() for _ in kinds)))
    monkeypatch.setattr(in_flight, "start", lambda x, w: jnp.dot(_wide(x), _wide(w).T))
    monkeypatch.setattr(in_flight, "landed", lambda sums, _: sums)
    monkeypatch.setattr(large_plan, "MULTIPROCESSORS", 2)
    quantize_groups.clear_cache()
    yield
    quantize_groups.clear_cache()


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("in_turn", [False, True])
def test_products_match_fp64_in_the_interpreter(in_turn):
    """Several tiles a block, some of which reach beyond the last row, and an odd group."""
    _check_all(136, 3 * GROUP, LargeConfig(2, 1, 1, swath=2, in_turn=in_turn))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "M", [24, pytest.param(16, marks=pytest.mark.slow), pytest.param(32, marks=pytest.mark.slow)]
)
def test_inputs_are_quantized_as_elsewhere(M):
    x = _rows(M, 2 * GROUP).at[0, :GROUP].set(0)
    codes, scale = quantize_groups(x)
    expected, of_groups = fp8.quantize(x.reshape(M, 2, GROUP))
    assert scale.shape == (2, 64)
    np.testing.assert_array_equal(np.asarray(scale[:, :M]), np.asarray(of_groups.T))
    _equal(codes, expected.reshape(x.shape))
    broken, _ = quantize_groups(x.at[1, 3].set(jnp.inf).at[2, 200].set(jnp.nan))
    sound = codes.at[1, :GROUP].set(jnp.nan).at[2, GROUP:].set(jnp.nan)
    _equal(broken, sound)


def _equal(*codes):
    np.testing.assert_array_equal(*(np.asarray(each, np.float32) for each in codes))


class _Sums:
    """An accumulator: the interpreter's takes nothing but its own products."""

    value = 0.0

    def __getitem__(self, _):
        return self.value


def _wgmma(accumulator, first, second):
    accumulator.value += jnp.dot(_wide(first), _wide(second))


def _wide(ref):
    return ref[...].astype(jnp.float32)
