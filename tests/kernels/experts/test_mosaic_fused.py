"""Experts of up to 256 rows in one launch on Hopper GPUs, beside float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.experts.mosaic import fused, places
from tests.kernels.experts.interpreted import interpret_fused
from tests.kernels.experts.test_mosaic_codes import choose, codes, draw, plain, rounded
from tests.kernels.h200_target import compile_for_h200, needs_plugin


def _plain_matrix(seed, X, outputs, inputs):
    return draw(seed, X, outputs, inputs, scale=inputs**-0.5)


def _same_for_all(T, k, X):
    """Every row chooses the same experts, of which there are few among many."""
    return jnp.tile(jnp.arange(X - k, X, dtype=jnp.int32), (T, 1))


def check_fused(T, X, E, F, k, *, of_codes, chosen=None):
    """Of rows of which a fifth are padding."""
    hidden, chosen = draw(1, T, E), choose(T, k, X) if chosen is None else chosen
    make = codes if of_codes else _plain_matrix
    gate, up, down = make(3, X, F, E), make(4, X, F, E), make(5, X, E, F)
    is_token = np.arange(T) % 5 != 4
    padding = -T % 64
    columns = jnp.pad(chosen.T, ((0, 0), (0, padding)))
    tokens = jnp.pad(jnp.asarray(is_token, jnp.int32), (0, padding))
    groups, rows, counts = places.place(
        columns, None, tokens, hidden, X, fused.ROWS, codes=of_codes
    )
    found = jax.jit(fused.gated_project)(rows, gate, up, down, groups.tiles, counts)
    at, found = np.asarray(groups.places)[:, :T].T, np.asarray(found, np.float64)
    assert np.all((at < groups.num_places) == is_token[:, None])
    wide = np.asarray(hidden, np.float64)
    for expert in np.unique(np.asarray(chosen)[is_token]):
        token, place = np.nonzero((np.asarray(chosen) == expert) & is_token[:, None])
        expected = _exact(wide[token], [_wide(each, expert) for each in (gate, up, down)], of_codes)
        error = np.linalg.norm(found[at[token, place]] - expected) / np.linalg.norm(expected)
        # Of codes some of 128 inner values become the next float8.
        assert error < (0.03 if of_codes else 0.01)


def _wide(matrix, expert):
    if isinstance(matrix, jax.Array):
        return np.asarray(matrix[expert], np.float64)
    return plain(type(matrix)(matrix.weight[expert][None], matrix.scale[expert][None]))[0]


def _exact(rows, matrices, of_codes):
    gate, up, down = matrices
    rows = rounded(rows) if of_codes else rows
    opened = rows @ gate.T
    inner = opened / (1 + np.exp(-opened)) * (rows @ up.T)
    inner = np.asarray(jnp.asarray(inner, jnp.bfloat16), np.float64)
    return (rounded(inner) if of_codes else inner) @ down.T


@pytest.mark.gpu
@pytest.mark.parametrize("of_codes", [False, True])
@pytest.mark.parametrize("T", [9, 17, 64, 129, 200, 256])
@pytest.mark.parametrize(("X", "E", "F"), [(128, 1024, 256), (64, 2048, 768), (16, 1024, 128)])
def test_a_launch_matches_fp64(T, X, E, F, of_codes):
    check_fused(T, X, E, F, 8, of_codes=of_codes)


@pytest.mark.gpu
@pytest.mark.parametrize("of_codes", [False, True])
@pytest.mark.parametrize("T", [17, 64, 256])
def test_experts_of_all_rows_beside_experts_of_none_match_fp64(T, of_codes):
    chosen = _same_for_all(T, 8, 128)
    check_fused(T, 128, 1024, 256, 8, of_codes=of_codes, chosen=chosen)


@pytest.fixture
def interpreted(monkeypatch):
    interpret_fused(monkeypatch)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("of_codes", [False, True])
def test_a_launch_matches_fp64_in_the_interpreter(of_codes):
    check_fused(20, 4, 1024, 128, 2, of_codes=of_codes)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("of_codes", [False, True])
def test_more_rows_than_a_tile_match_fp64_in_the_interpreter(of_codes):
    check_fused(50, 64, 1024, 256, 2, of_codes=of_codes, chosen=_same_for_all(50, 2, 64))


def _supported(num_cores, gate):
    device = jax.sharding.AbstractDevice("NVIDIA", num_cores=num_cores, platform="gpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        return fused.supports(gate)


def test_all_blocks_must_run_at_once():
    """An H100 PCIe has fewer multiprocessors, as has a part of a GPU; others say nothing."""
    assert _supported(132, (128, 768, 2048))
    assert not any(_supported(n, (128, 768, 2048)) for n in (114, 16, None))
    assert not fused.supports((128, 768, 2048)), "a CPU"


def test_what_the_launch_takes():
    assert _supported(132, (128, 1536, 4096))
    assert _supported(132, (128, 384, 2048)), "half of 30B-A3B's width"
    assert not _supported(132, (128, 192, 2048))
    assert not _supported(132, (8, 64, 64)), "the bundled model with experts"


def _counted(T):
    shapes = [(1024, 256), (1024, 256), (256, 1024)]
    matrices = [jax.ShapeDtypeStruct((64, b, a), jnp.bfloat16) for a, b in shapes]

    def run(chosen, is_token, rows, *matrices):
        groups, rows, counts = places.place(
            chosen, None, is_token, rows, 64, fused.ROWS, codes=False
        )
        return fused.gated_project(rows, *matrices, groups.tiles, counts)

    columns, tokens = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((8, 256), (256,)))
    return run, columns, tokens, jax.ShapeDtypeStruct((T, 1024), jnp.bfloat16), *matrices


@needs_plugin
@pytest.mark.parametrize("T", [129, 256])
def test_of_many_rows_a_block_may_have_a_token_less(T):
    assert compile_for_h200(*_counted(T))
