"""Choices, lists of experts and places of rows, beside those that XLA makes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import fp8
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


def _check_places(T, k, X, E, tile_rows, *, codes=False, marked=True):
    """Beside XLA's, of rows of which some chose nothing, or fewer experts than others."""
    chosen = choose(T, k, X)
    expected = groups.group(chosen, X, tile_rows)
    columns, is_token = _tokens(chosen, X)
    marks = places._mark(jnp.where(is_token > 0, columns, X), X) if marked else None
    rows = jax.random.normal(jax.random.key(1), (T, E)).astype(jnp.bfloat16)
    (found, num_places, tiles), copied, counts = places.place(
        columns, marks, is_token, rows, X, tile_rows, codes=codes
    )
    assert num_places == expected.num_places
    found = np.asarray(found)[:, :T]
    np.testing.assert_array_equal(found, np.asarray(expected.places))
    total = int(expected.tiles.total[0])
    assert int(tiles.total[0]) == total
    for each, wanted in zip(tiles[1:], expected.tiles[1:], strict=True):
        np.testing.assert_array_equal(np.asarray(each)[:total], np.asarray(wanted)[:total])
    assert len(counts) >= total
    assert not np.any(np.asarray(counts))
    choice, token = np.nonzero(found < num_places)
    place = found[choice, token]
    assert len(np.unique(place)) == len(place), "nobody shares a place"
    if codes:
        narrow, scale = fp8.quantize(rows.reshape(T, E // 128, 128))
        np.testing.assert_array_equal(np.asarray(copied.scale).T[place], np.asarray(scale)[token])
        wanted = np.asarray(narrow.astype(jnp.float32)).reshape(T, E)
        copied = copied.codes
    else:
        wanted = np.asarray(rows, np.float32)
    np.testing.assert_array_equal(np.asarray(copied.astype(jnp.float32))[place], wanted[token])


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


def _check_marks(T, k, X):
    logits = draw_logits(T, X)
    chosen, _, marks = choice.choose(logits, k, normalize=True, mark=True)
    assert marks.shape == (-(-T // 64) * 64, X)
    np.testing.assert_array_equal(np.asarray(marks)[:T], np.asarray(places._mark(chosen, X))[:T])
    assert not np.any(np.asarray(marks, np.float32)[T:])


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
@pytest.mark.parametrize(("tile_rows", "codes"), [(16, True), (32, False), (32, True), (64, False)])
@pytest.mark.parametrize(
    ("T", "k", "X"),
    [(9, 8, 128), (17, 8, 128), (64, 8, 128), (33, 2, 64), (129, 8, 128), (256, 8, 128)],
)
def test_rows_get_the_places_that_xla_gives_them(T, k, X, tile_rows, codes):
    _check_places(T, k, X, 2048, tile_rows, codes=codes)


@pytest.mark.gpu
@pytest.mark.parametrize("X", [16, 32, 96])
def test_of_other_numbers_of_experts_xla_makes_the_marks(X):
    _check_places(100, 8, X, 1024, 32, marked=False)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [9, 17, 64, 130, 256])
def test_a_choice_is_marked(T):
    _check_marks(T, 8, 128)


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
        rows = jnp.zeros((33, 1024), jnp.bfloat16)
        return listed, places.place(chosen, None, is_token, rows, X, 64, codes=False)

    types = (16, X, jnp.bfloat16), (8, 64, jnp.int32), (64, jnp.int32)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for *shape, dtype in types]
    assert compile_for_h200(run, *shapes)


@pytest.fixture
def interpreted(monkeypatch):
    interpret(monkeypatch)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("T", "X", "tile_rows", "codes"),
    [
        (20, 64, 16, True),
        pytest.param(64, 32, 64, False, marks=pytest.mark.slow),
        pytest.param(131, 64, 32, False, marks=pytest.mark.slow),
    ],
)
def test_rows_get_their_places_in_the_interpreter(T, X, tile_rows, codes):
    _check_places(T, 3, X, 1024, tile_rows, codes=codes, marked=X == 64)


@pytest.mark.usefixtures("interpreted")
def test_a_choice_is_marked_in_the_interpreter():
    _check_marks(10, 3, 64)


@pytest.mark.parametrize(("T", "k", "X", "tile_rows"), [(17, 2, 4, 16), (256, 8, 128, 32)])
def test_places_hold_each_row_once_and_tiles_hold_each_place_once(T, k, X, tile_rows):
    """What both XLA and the kernel must say: it is what products rely on."""
    group = jax.jit(groups.group, static_argnums=(1, 2))
    for seed in range(20):
        chosen = choose(T, k, X, seed, padding=seed / 20)
        found, num_places, tiles = group(chosen, X, tile_rows)
        found, chosen = np.asarray(found).T, np.asarray(chosen)
        own = chosen < X
        assert np.all(found[~own] == num_places)
        assert len(np.unique(found[own])) == own.sum()
        firsts, ends = (np.asarray(each)[: int(tiles.total[0])] * 8 for each in tiles[2:])
        assert np.all((ends > firsts) & (ends - firsts <= tile_rows))
        assert np.all(firsts[1:] == ends[:-1])
        for first, end, expert in zip(firsts, ends, np.asarray(tiles.experts), strict=False):
            inside = own & (found >= first) & (found < end)
            assert np.all(chosen[inside] == expert)


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
