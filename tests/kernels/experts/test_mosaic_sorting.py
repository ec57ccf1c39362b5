"""Places of rows and lists of experts, beside those that XLA makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.experts import groups
from jaxinfer.kernels.experts.mosaic import few_rows, sorting
from jaxinfer.kernels.experts.mosaic.spread import spread
from tests.kernels.experts.interpreted import interpret


def choose(T, k, X, seed=0, padding=0.2):
    """Different experts of each token, with holes: X is none."""
    rng = np.random.default_rng(seed)
    chosen = np.argsort(rng.random((T, X)), axis=1)[:, :k].astype(np.int32)
    chosen[rng.random(T) < padding] = X
    chosen[rng.random((T, k)) < padding / 4] = X
    return jnp.asarray(chosen)


def _columns(values):
    """A column a token, and more of whatever: 5."""
    return jnp.pad(values.T, ((0, 0), (0, -len(values) % sorting.ROWS)), constant_values=5)


def _tokens(chosen, X):
    """Rows that chose none are no tokens for the kernel, which is given other experts of them."""
    is_token = jnp.any(chosen < X, axis=1)
    given = jnp.where(is_token[:, None], chosen, 3)
    return _columns(given), jnp.pad(is_token.astype(jnp.int32), (0, -len(chosen) % sorting.ROWS))


def _check_groups(T, k, X, tile_rows):
    chosen = choose(T, k, X)
    expected = groups.group(chosen, X, tile_rows)
    places, num_places, tiles = sorting.group(*_tokens(chosen, X), T * k, X, tile_rows)
    assert num_places == expected.num_places
    np.testing.assert_array_equal(np.asarray(places[:, :T]), np.asarray(expected.places))
    assert np.all(np.asarray(places[:, T:]) == num_places)
    total = int(expected.tiles.total[0])
    assert int(tiles.total[0]) == total
    for found, wanted in zip(tiles[1:], expected.tiles[1:], strict=True):
        np.testing.assert_array_equal(np.asarray(found)[:total], np.asarray(wanted)[:total])


def _check_list(T, k, X):
    chosen = choose(T, k, X)
    weights = jax.random.uniform(jax.random.key(T), (T, k)).astype(jnp.bfloat16)
    weights = weights.astype(jnp.float32)
    expected = few_rows.list_experts(chosen, weights, X)
    columns, is_token = _tokens(chosen, X)
    listed = sorting.list_experts(columns, _columns(weights), is_token, T, X)
    total = int(expected.total[0])
    assert int(listed.total[0]) == total
    np.testing.assert_array_equal(listed.experts[:total], expected.experts[:total])
    np.testing.assert_array_equal(listed.weights[:total, :T], expected.weights[:total, :T])


def _check_spread(T, E):
    places, P, _ = groups.group(choose(T, 4, 64, seed=3), 64, 64)
    rows = jax.random.normal(jax.random.key(0), (T, E)).astype(jnp.bfloat16)
    found = np.asarray(spread(rows, places, P), np.float32)
    for of_tokens in np.asarray(places):
        is_one = of_tokens < P
        np.testing.assert_array_equal(
            found[of_tokens[is_one]], np.asarray(rows, np.float32)[is_one]
        )


@pytest.mark.gpu
@pytest.mark.parametrize("tile_rows", [16, 64, 128])
@pytest.mark.parametrize(("T", "k", "X"), [(17, 8, 128), (64, 8, 128), (33, 2, 64)])
def test_rows_get_the_places_that_xla_gives_them(T, k, X, tile_rows):
    _check_groups(T, k, X, tile_rows)


@pytest.mark.gpu
@pytest.mark.parametrize(("T", "k", "X"), [(2, 8, 128), (8, 8, 128), (16, 8, 128), (16, 2, 64)])
def test_experts_are_listed_as_xla_lists_them(T, k, X):
    _check_list(T, k, X)


@pytest.mark.gpu
@pytest.mark.parametrize(("T", "E"), [(1, 2048), (300, 2048), (64, 256), (17, 2880)])
def test_rows_are_copied_to_their_places(T, E):
    _check_spread(T, E)


@pytest.fixture
def interpreted(monkeypatch):
    interpret(monkeypatch)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("T", "tile_rows"), [(20, 16), pytest.param(64, 64, marks=pytest.mark.slow)]
)
def test_rows_get_their_places_in_the_interpreter(T, tile_rows):
    _check_groups(T, 3, 64, tile_rows)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("T", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_experts_are_listed_in_the_interpreter(T):
    _check_list(T, 3, 64)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "E",
    [128, pytest.param(2048, marks=pytest.mark.slow), pytest.param(1152, marks=pytest.mark.slow)],
)
def test_rows_are_copied_in_the_interpreter(E):
    _check_spread(5, E)
