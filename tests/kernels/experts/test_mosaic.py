"""Kernels of experts on Hopper GPUs: beside float64, and what compiling them says."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.experts import op, xla
from jaxinfer.kernels.experts.groups import group
from jaxinfer.kernels.experts.mosaic import choose, few_rows, grouped
from jaxinfer.kernels.experts.mosaic.grouped_plan import GroupedConfig
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.policy import Kernels
from tests import hlo
from tests.kernels.h200_target import compile_for_h200, needs_plugin

X, E, F, K, EPS = 64, 512, 192, 4, 1e-6
MOSAIC = Kernels("mosaic")


def _draw(seed, *shape, scale=1.0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * scale
    return jnp.asarray(values, jnp.bfloat16)


def _layer(experts=X, hidden=E, width=F):
    """A norm, a router, and the experts' matrices."""
    router = _draw(1, experts, hidden, scale=hidden**-0.5)
    shapes = (experts, width, hidden), (experts, width, hidden), (experts, hidden, width)
    matrices = [_draw(n, *shape, scale=shape[-1] ** -0.5) for n, shape in enumerate(shapes, 2)]
    return 1 + _draw(0, hidden, scale=0.1), router, matrices


def _run(x, norm, router, matrices, is_token=None):
    routed = op.route(ResidualStream(x), norm, router, K, normalize=True, eps=EPS, kernels=MOSAIC)
    mixed = op.mix_add(routed, norm, matrices, is_token=is_token, eps=EPS, kernels=MOSAIC)
    return mixed.summed(), routed.chosen, routed.weights


def _exact(x, norm, matrices, chosen, weights):
    """What the experts add, in float64."""
    x, norm, *matrices = (np.asarray(each, np.float64) for each in (x, norm, *matrices))
    hidden = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * norm
    total = np.zeros_like(x)
    for token, experts in enumerate(np.asarray(chosen)):
        for place, expert in enumerate(experts):
            gate, up, down = (each[expert] for each in matrices)
            opened = gate @ hidden[token]
            inner = opened / (1 + np.exp(-opened)) * (up @ hidden[token])
            total[token] += float(weights[token, place]) * (down @ inner)
    return total


# Of up to 256 rows: places by XLA and grouped products, places by a kernel, and one launch.
_SIZES = [(512, 192), (1024, 192), (1024, 256)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("T", "hidden", "width"),
    [(T, E, F) for T in (1, 2, 4, 8, 16, 300, 2048)]
    + [(T, *sizes) for T in (17, 33, 64, 200, 256) for sizes in _SIZES],
)
def test_a_layer_matches_fp64(T, hidden, width):
    norm, router, matrices = _layer(X, hidden, width)
    x = _draw(9 + T, T, hidden)
    found, chosen, weights = jax.jit(_run)(x, norm, router, matrices)
    assert np.all(np.diff(np.asarray(chosen), axis=1) > 0)
    added = np.asarray(found, np.float64) - np.asarray(x, np.float64)
    expected = _exact(x, norm, matrices, chosen, weights)
    assert np.linalg.norm(added - expected) / np.linalg.norm(expected) < 0.02


@pytest.mark.gpu
@pytest.mark.parametrize("T", [2, 16, 40, 256, 520])
@pytest.mark.parametrize(("hidden", "width"), _SIZES)
def test_padding_changes_nothing_and_gets_nothing(T, hidden, width):
    norm, router, matrices = _layer(X, hidden, width)
    x, is_token = _draw(3, T, hidden), jnp.arange(T) % 3 != 1
    whole, *_ = jax.jit(_run)(x, norm, router, matrices)
    some, *_ = jax.jit(_run)(x, norm, router, matrices, is_token)
    some, whole, x = (np.asarray(each, np.float32) for each in (some, whole, x))
    np.testing.assert_array_equal(some[is_token], whole[is_token])
    np.testing.assert_array_equal(some[~is_token], x[~is_token])


@pytest.mark.gpu
@pytest.mark.parametrize("T", [8, 64, 250, 300])
@pytest.mark.parametrize(("hidden", "width"), _SIZES)
def test_a_row_of_nan_stays_alone(T, hidden, width):
    norm, router, matrices = _layer(X, hidden, width)
    x = _draw(4, T, hidden)
    sound, *_ = jax.jit(_run)(x, norm, router, matrices)
    broken, *_ = jax.jit(_run)(x.at[3, 5].set(jnp.nan), norm, router, matrices)
    sound, broken = (np.asarray(each, np.float32) for each in (sound, broken))
    assert np.all(np.isnan(broken[3]))
    np.testing.assert_array_equal(np.delete(broken, 3, axis=0), np.delete(sound, 3, axis=0))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("T", "experts", "k"), [(1, 128, 8), (5, 128, 8), (256, 64, 2), (48, 32, 4)]
)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_choice_is_that_of_top_k(T, experts, k, normalize):
    logits = _draw(T, T, experts, scale=3.0).at[0].set(1.5)  # of equal ones the first
    found, weights = jax.jit(functools.partial(choose.choose, num_chosen=k, normalize=normalize))(
        logits
    )
    expected, wanted = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), k)
    order = np.argsort(np.asarray(wanted), axis=1)
    wanted = np.take_along_axis(np.asarray(wanted), order, axis=1)
    np.testing.assert_array_equal(np.asarray(found)[:, :T].T, wanted)
    expected = np.take_along_axis(np.asarray(expected), order, axis=1)
    if normalize:
        expected = expected / expected.sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(weights)[:, :T].T, expected, rtol=2**-7)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [GroupedConfig(1, 128, 3), GroupedConfig(2, 256, 3, 1)])
def test_sizes_change_no_result(config):
    norm, router, matrices = _layer()
    del norm, router
    chosen = jnp.asarray(np.argsort(np.random.default_rng(0).random((512, X)), 1)[:, :K], jnp.int32)
    groups = group(chosen, X, config.rows)
    x = _draw(7, groups.num_places, E)
    places = np.asarray(groups.places).ravel()
    run = jax.jit(functools.partial(grouped.gated, rows=config.rows, config=config))
    found = run(x, *matrices[:2], groups.tiles)
    usual = jax.jit(functools.partial(grouped.gated, rows=config.rows))
    expected = usual(x, *matrices[:2], groups.tiles)
    found, expected = (np.asarray(each, np.float32)[places] for each in (found, expected))
    np.testing.assert_array_equal(found, expected)


def _shape(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


@needs_plugin
@pytest.mark.parametrize("T", [1, 8, 16, 64, 256, 4096])
def test_a_layer_compiles_and_few_values_lie_in_local_memory(T, monkeypatch, capfd):
    """Of Qwen3-30B-A3B's shape."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")
    experts, hidden, width = 128, 2048, 768
    matrices = [_shape(experts, width, hidden)] * 2 + [_shape(experts, hidden, width)]
    arguments = _shape(T, hidden), _shape(hidden), _shape(experts, hidden), matrices
    compiled = compile_for_h200(_run, *arguments, _shape(T, dtype=jnp.bool_))
    kernels = set(re.findall(r"(\w+)/mpmd_map", compiled.as_text()))
    few, some = {"few_rows_gated", "few_rows_down"}, {"place_rows", "experts_fused"}
    many = {"experts_gated", "experts_project", "spread_rows"}
    assert (few if T <= 16 else some if T <= 256 else many) <= kernels
    assert "choose_experts" in kernels
    assert ("choose_and_list" in kernels) == (1 < T <= 16)
    dump = "".join(capfd.readouterr())
    spilled = dict(re.findall(r"'(\w+?)_mosaic_gpu_kernel'.*?(\d+) bytes spill", dump))
    assert not any(int(count) > 64 for count in spilled.values())


@needs_plugin
@pytest.mark.parametrize(
    ("T", "shown", "launched"),
    [
        (1, (), {"choose_experts"}),
        (2, (), {"choose_and_list"}),
        (16, (), {"choose_and_list"}),
        (16, ("chosen",), {"choose_and_list", "choose_experts"}),
        (16, ("anew",), {"list_experts", "choose_experts"}),
        (32, (), {"place_rows", "choose_experts"}),
    ],
)
def test_few_rows_choose_and_list_in_one_launch(T, shown, launched):
    """Nothing else is launched unless somebody reads the choice."""

    def run(x, norm, router, *matrices):
        routed = op.route(
            ResidualStream(x), norm, router, 8, normalize=True, eps=EPS, kernels=MOSAIC
        )
        if "anew" in shown:
            routed = routed.renumbered(len(router) - 1 - routed.chosen)
        mixed = op.mix_add(routed, norm, matrices, eps=EPS, kernels=MOSAIC).summed()
        return mixed, routed.chosen if "chosen" in shown else None

    gate, down = _shape(128, F, 1024), _shape(128, 1024, F)
    shapes = _shape(T, 1024), _shape(1024), _shape(128, 1024), gate, gate, down
    kernels = hlo.mosaic_kernels(compile_for_h200(run, *shapes).as_text())
    of_choice = {"choose_experts", "choose_and_list", "list_experts", "place_rows"}
    found = {name: count for name, count in kernels.items() if name in of_choice}
    assert found == dict.fromkeys(launched, 1)


@pytest.mark.parametrize(
    ("config", "width", "dtype"),
    [
        (GroupedConfig(3, 256, 3), F, "bfloat16"),
        (GroupedConfig(1, 256, 9), F, "bfloat16"),
        (GroupedConfig(1, 320, 3), F, "bfloat16"),
        (GroupedConfig(1, 128, 3), F, "float16"),
        (GroupedConfig(1, 128, 3), 96, "bfloat16"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config, width, dtype):
    matrix = jnp.zeros((2, width, E), dtype)
    tiles = group(jnp.zeros((8, 1), jnp.int32), 2, 64).tiles
    with pytest.raises(ValueError, match=r"does not fit|take bfloat16"):
        grouped.project(jnp.zeros((16, E), dtype), matrix, tiles, 64, config=config)


def test_what_kernels_of_few_rows_take():
    def supports(rows, gate, dtype="bfloat16"):
        return few_rows.supports(rows, [_shape(*gate)], dtype)

    assert supports(8, (X, F, E))
    assert not supports(17, (X, F, E))
    assert not supports(8, (X, 96, E))
    assert not supports(8, (X, F, E), "float32")
    # Of Qwen3-30B-A3B, Qwen3-235B-A22B and Qwen3-Coder-480B, whose slices of down are too large.
    assert supports(16, (128, 768, 2048))
    assert supports(8, (128, 1536, 4096))
    assert not supports(1, (160, 2560, 6144))
    with pytest.raises(ValueError, match="do not take"):
        few_rows.project_add(
            jnp.zeros((8, 8, 96), jnp.bfloat16),
            jnp.zeros((X, E, 96), jnp.bfloat16),
            few_rows.Listed(*(jnp.zeros(8, jnp.int32),) * 3),
            8,
        )
    with pytest.raises(ValueError, match="multiple of 32"):
        choose.choose(jnp.zeros((4, 8), jnp.bfloat16), 2, normalize=True)


@pytest.mark.parametrize(
    ("rows", "hidden", "width", "splits"),
    [
        *((rows, 2048, 768, 3) for rows in (1, 8, 16)),  # Qwen3-30B-A3B
        (8, 4096, 1536, 2),  # 235B-A22B
        (8, 2048, 2048, 4),  # two blocks would have room for one slice each
        (8, 1024, 768, 6),  # three would be too few for the memory
    ],
)
def test_few_blocks_share_a_tile_where_they_keep_the_memory_busy(rows, hidden, width, splits):
    matrices = [_shape(128, width, hidden)] * 2 + [_shape(128, hidden, width)]
    assert few_rows.supports(rows, matrices, jnp.bfloat16)
    assert few_rows._down_plan(rows, hidden, width, 64).splits == splits


def test_experts_that_are_numbered_anew_are_so_in_their_columns():
    """As devices number their own, and replicas' places."""
    chosen, weights = jnp.array([[3, 5], [1, 4]]), jnp.ones((2, 2), jnp.bfloat16)
    marks = jnp.ones((64, 8), jnp.bfloat16)
    columns = op.Columns(jnp.pad(chosen.T, ((0, 0), (0, 62))), jnp.ones((2, 64)), marks)
    logits = op.Logits(jnp.ones((2, 64), jnp.bfloat16), normalize=True)
    routed = op.Routed(jnp.ones((2, 8)), jnp.ones((2, 8)), chosen, weights, columns, logits)
    assert routed.renumbered(chosen) is routed
    anew = routed.renumbered(chosen + 1)
    np.testing.assert_array_equal(anew.chosen, chosen + 1)
    np.testing.assert_array_equal(anew.columns.chosen[:, :2], (chosen + 1).T)
    assert anew.columns.chosen.shape == (2, 64)
    assert anew.columns.weights is columns.weights
    assert anew.columns.marks is None
    assert anew.logits is None
    assert routed._replace(columns=None).renumbered(chosen + 1).columns is None


def test_lists_hold_each_chosen_expert_once():
    """By XLA, which lists where the kernel does not."""
    chosen = jnp.asarray([[5, 1, 7], [1, 9, 2], [9, 9, 9]], jnp.int32)  # the last row chose none
    weights = jnp.asarray([[0.5, 0.25, 0.25], [0.75, 0.0, 0.25], [1.0, 1.0, 1.0]], jnp.float32)
    listed = few_rows.list_experts(chosen, weights, 9)
    assert int(listed.total[0]) == 4
    assert listed.experts[:4].tolist() == [1, 2, 5, 7]
    wanted = [[0.25, 0.75, 0], [0, 0.25, 0], [0.5, 0, 0], [0.25, 0, 0]]
    np.testing.assert_array_equal(listed.weights[:4, :3], wanted)


def test_groups_hold_each_row_once_by_expert():
    chosen = jnp.asarray([[2, 0], [2, 3], [3, 1], [2, 1]], jnp.int32)  # 3 is none
    groups = group(chosen, 3, 64)
    places = np.asarray(groups.places)
    assert places.tolist() == [[16, 17, groups.num_places, 18], [0, groups.num_places, 8, 9]]
    assert int(groups.tiles.total[0]) == 3
    assert [np.asarray(each)[:3].tolist() for each in groups.tiles[1:]] == [
        [0, 1, 2], [0, 1, 2], [1, 2, 3],
    ]  # fmt: skip
    outputs = jnp.arange(groups.num_places, dtype=jnp.float32)[:, None] + jnp.zeros(2)
    mixed = groups.combine(outputs, jnp.full((4, 2), 0.5))
    assert mixed[:, 0].tolist() == [8.0, 8.5, 4.0, 13.5]


def test_without_kernels_the_layer_is_xlas():
    norm, router, matrices = _layer(8, 64, 32)
    x = _draw(0, 5, 64)
    routed = op.route(ResidualStream(x), norm, router, 2, normalize=True, eps=EPS)
    mixed = op.mix(routed, norm, matrices, eps=EPS)
    expected = xla.mixture(routed.hidden, routed.chosen, routed.weights, *matrices)
    np.testing.assert_array_equal(np.asarray(mixed, np.float32), np.asarray(expected, np.float32))
    whole = op.mix_add(routed, norm, matrices, eps=EPS).summed()
    np.testing.assert_array_equal(np.asarray(whole, np.float32), np.asarray(x + mixed, np.float32))
