"""Choices, lists of experts and places of rows, beside those that XLA makes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.experts import groups
from jaxinfer.kernels.experts.mosaic import choose as choice
from jaxinfer.kernels.experts.mosaic import few_rows, lists, places
from jaxinfer.kernels.experts.mosaic.spread import spread
from jaxinfer.kernels.experts.mosaic.warpgroup import ROWS
from tests.kernels.experts.interpreted import interpret
from tests.kernels.h200_target import compile_for_h200, needs_plugin


def choose(T, k, X, seed=0, padding=0.2):
    """Different experts of each token, with holes: X is none."""
    rng = np.random.default_rng(seed)
    chosen = np.argsort(rng.random((T, X)), axis=1)[:, :k].astype(np.int32)
    chosen[rng.random(T) < padding] = X
    chosen[rng.random((T, k)) < padding / 4] = X
    return jnp.asarray(chosen)


def _columns(values):
    """A column a token, and more of whatever: 5."""
    return jnp.pad(values.T, ((0, 0), (0, -len(values) % ROWS)), constant_values=5)


def _tokens(chosen, X):
    """Rows that chose none are no tokens for the kernel, which is given other experts of them."""
    is_token = jnp.any(chosen < X, axis=1)
    given = jnp.where(is_token[:, None], chosen, 3)
    return _columns(given), jnp.pad(is_token.astype(jnp.int32), (0, -len(chosen) % ROWS))


def _check_groups(T, k, X, tile_rows):
    chosen = choose(T, k, X)
    expected = groups.group(chosen, X, tile_rows)
    found, num_places, tiles = places.group(*_tokens(chosen, X), T * k, X, tile_rows)
    assert num_places == expected.num_places
    np.testing.assert_array_equal(np.asarray(found[:, :T]), np.asarray(expected.places))
    assert np.all(np.asarray(found[:, T:]) == num_places)
    total = int(expected.tiles.total[0])
    assert int(tiles.total[0]) == total
    for each, wanted in zip(tiles[1:], expected.tiles[1:], strict=True):
        np.testing.assert_array_equal(np.asarray(each)[:total], np.asarray(wanted)[:total])


def _check_list(T, k, X):
    chosen = choose(T, k, X)
    weights = jax.random.uniform(jax.random.key(T), (T, k)).astype(jnp.bfloat16)
    weights = weights.astype(jnp.float32)
    expected = few_rows.list_experts(chosen, weights, X)
    columns, is_token = _tokens(chosen, X)
    listed = lists.list_experts(columns, _columns(weights), is_token, T, X)
    total = int(expected.total[0])
    assert int(listed.total[0]) == total
    np.testing.assert_array_equal(listed.experts[:total], expected.experts[:total])
    np.testing.assert_array_equal(listed.weights[:total, :T], expected.weights[:total, :T])


def draw_logits(T, X, seed=0):
    """With many ties, and of enough rows one with a NaN and one of equal values."""
    values = np.round(np.random.default_rng(seed).standard_normal((T, X)) * 4) / 4
    for row, (column, value) in zip(
        range(1, T, 3), ((5, np.nan), (slice(None), 1.5)), strict=False
    ):
        values[row, column] = value
    return jnp.asarray(values, jnp.bfloat16)


def _check_choice_and_list(T, k, X, *, normalize):
    logits = draw_logits(T, X)
    is_token = jnp.pad(jnp.asarray(np.arange(T) % 4 != 3, jnp.int32), (0, ROWS - T))
    assert lists.supports_logits(logits)
    columns = choice.choose(logits, k, normalize=normalize)
    expected = lists.list_experts(*columns, is_token, T, X)
    found = lists.choose_and_list(logits, is_token, k, normalize=normalize)
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(each), np.asarray(wanted))


def _check_choice(T, k, X):
    logits = draw_logits(T, X)
    found, weights = (
        np.asarray(each)[:, :T].T for each in choice.choose(logits, k, normalize=True)
    )
    probabilities = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    likely, wanted = jax.lax.top_k(probabilities, k)
    likely, wanted = np.array(likely / likely.sum(1, keepdims=True)), np.array(wanted)
    order = np.argsort(wanted, axis=1)
    fails = np.isnan(np.asarray(probabilities[:, 0]))
    wanted, likely = (np.take_along_axis(each, order, axis=1) for each in (wanted, likely))
    wanted[fails], likely[fails] = np.arange(k), np.nan
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(weights, likely, rtol=2**-7)


def _check_spread(T, E):
    found_places, P, _ = groups.group(choose(T, 4, 64, seed=3), 64, 64)
    rows = jax.random.normal(jax.random.key(0), (T, E)).astype(jnp.bfloat16)
    found = np.asarray(spread(rows, found_places, P), np.float32)
    for of_tokens in np.asarray(found_places):
        is_one = of_tokens < P
        np.testing.assert_array_equal(
            found[of_tokens[is_one]], np.asarray(rows, np.float32)[is_one]
        )


@pytest.mark.gpu
@pytest.mark.parametrize("tile_rows", [16, 64, 128])
@pytest.mark.parametrize(
    ("T", "k", "X"),
    [(17, 8, 128), (64, 8, 128), (33, 2, 64)],
)
def test_rows_get_the_places_that_xla_gives_them(T, k, X, tile_rows):
    _check_groups(T, k, X, tile_rows)


@pytest.mark.gpu
@pytest.mark.parametrize(("T", "k", "X"), [(2, 8, 128), (8, 8, 128), (16, 8, 128), (16, 2, 64)])
def test_experts_are_listed_as_xla_lists_them(T, k, X):
    _check_list(T, k, X)


@pytest.mark.gpu
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("T", "k", "X"), [(1, 8, 128), (2, 8, 128), (5, 4, 64), (8, 8, 128), (13, 8, 128), (16, 8, 128)]
)
def test_a_launch_that_chooses_and_lists_says_what_two_do(T, k, X, normalize):
    _check_choice_and_list(T, k, X, normalize=normalize)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [2, 4, 8, 16, 17, 64, 200])
def test_a_row_chooses_alike_whatever_rows_are_beside_it(T):
    logits = jnp.asarray(np.random.default_rng(T).standard_normal((T, 128)), jnp.bfloat16)
    choose_some = functools.partial(choice.choose, num_chosen=8, normalize=True)
    whole = choose_some(logits)
    for row in range(0, T, max(T // 8, 1)):
        for each, wanted in zip(whole, choose_some(logits[row : row + 1]), strict=True):
            np.testing.assert_array_equal(np.asarray(each)[:, row], np.asarray(wanted)[:, 0])


@pytest.mark.gpu
@pytest.mark.parametrize(("T", "E"), [(1, 2048), (300, 2048), (64, 256), (17, 2880)])
def test_rows_are_copied_to_their_places(T, E):
    _check_spread(T, E)


@needs_plugin
@pytest.mark.parametrize("X", [64, 128])
def test_kernels_of_each_number_of_experts_compile(X):
    def run(logits, chosen, is_token):
        listed = lists.choose_and_list(logits, is_token, 8, normalize=True)
        return listed, places.group(chosen, is_token, 8 * 64, X, 64)

    types = (16, X, jnp.bfloat16), (8, 64, jnp.int32), (64, jnp.int32)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for *shape, dtype in types]
    assert compile_for_h200(run, *shapes)


@pytest.fixture
def interpreted(monkeypatch):
    interpret(monkeypatch)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("T", "tile_rows"),
    [(20, 16), pytest.param(64, 64, marks=pytest.mark.slow)],
)
def test_rows_get_their_places_in_the_interpreter(T, tile_rows):
    _check_groups(T, 3, 64, tile_rows)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("T", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_experts_are_listed_in_the_interpreter(T):
    _check_list(T, 3, 64)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("T", "normalize"),
    [(2, True), (8, False), *(pytest.param(T, True, marks=pytest.mark.slow) for T in (5, 16))],
)
def test_one_launch_chooses_and_lists_in_the_interpreter(T, normalize):
    _check_choice_and_list(T, 3, 64, normalize=normalize)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("T", [5, 8])
def test_the_choice_is_that_of_top_k_in_the_interpreter(T):
    _check_choice(T, 3, 64)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "E",
    [128, pytest.param(2048, marks=pytest.mark.slow), pytest.param(1152, marks=pytest.mark.slow)],
)
def test_rows_are_copied_in_the_interpreter(E):
    _check_spread(5, E)
