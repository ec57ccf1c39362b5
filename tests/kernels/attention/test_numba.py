"""Decode attention compiled by numba: exact, and the same to the bit whatever surrounds a row."""

import ctypes
import dataclasses
import functools
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention.numba import call_frame, decode
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from tests.kernels.attention import attention_cases
from tests.kernels.attention.attention_cases import Case

# Compiled as a whole, as in serving: one operation at a time takes many times as long to compile.
_OP = jax.jit(
    functools.partial(attention.paged_attention, kernels=Kernels("numba")),
    static_argnames=("scale", "window", "max_query_len"),
)
_CASES = attention_cases.decode_cases()


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_attention_matches_fp64(case):
    attention_cases.check(_OP, case, jnp.float32)


@pytest.mark.parametrize("seed", range(8))
def test_random_problems_match_fp64(seed):
    case = attention_cases.random_case(np.random.default_rng(seed), decode=True)
    attention_cases.check(_OP, case, jnp.float32, seed=seed)


def test_prefills_are_xlas():
    case = attention_cases.prefill_cases()[0]
    attention_cases.check(_OP, case, jnp.float32)


def _run(problem, rows=slice(None), **changes):
    arrays = {
        "q": problem.q[rows],
        **problem.pages._asdict(),
        "context_lens": problem.context_lens[rows],
        "block_tables": problem.block_tables[rows],
        **changes,
    }

    @jax.jit
    def run(q, k, v, k_scale, v_scale, context_lens, block_tables):
        pages, seen = Pages(k, v, k_scale, v_scale), PagedRows(context_lens, block_tables)
        return decode.paged_decode_attention(q, pages, seen, Scoring(problem.scale))

    return np.asarray(run(**jax.tree.map(jnp.asarray, arrays)))


def _problem(**changes):
    contexts = tuple(range(7, 250, 13))
    case = Case("ragged", (1,) * len(contexts), contexts, decode=True, **changes)
    return attention_cases.build(case, jnp.float32, 0)


def test_a_row_is_the_same_to_the_bit_beside_any_others():
    problem = _problem()
    together = _run(problem)
    for rows in (slice(3, 4), slice(5, 12)):
        np.testing.assert_array_equal(_run(problem, rows), together[rows])


def test_the_size_of_pages_makes_no_difference():
    problem = _problem()
    keys = np.random.default_rng(1).standard_normal((2, 96, 2, 128)).astype(np.float32)
    outs = []
    for size in (8, 32):
        # Three rows that share the same keys, of which each sees more.
        table = np.arange(96 // size, dtype=np.int32)[None].repeat(3, 0)
        k, v = keys.reshape(2, -1, size, 2, 128)
        contexts = np.array([31, 64, 77], np.int32)
        pages = {"k": k, "v": v, "block_tables": table}
        outs.append(_run(problem, slice(3), context_lens=contexts, **pages))
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize(("cores", "calls"), [(1, 1), (2, 16), (64, 38)])
def test_calls_share_the_pairs_of_rows_and_heads(cores, calls, monkeypatch):
    problem = _problem()
    expected = _run(problem)
    monkeypatch.setattr(decode, "usable_cores", lambda: cores)
    assert decode._num_calls(problem.q.shape[0] * 2) == calls
    assert decode._num_calls(8) == 1
    np.testing.assert_array_equal(_run(problem), expected)


@pytest.mark.parametrize("name", ["k", "v", "q"])
def test_a_value_that_is_not_a_number_spoils_its_own_row_alone(name):
    problem = _problem()
    expected = _run(problem)
    spoilt = (problem.q if name == "q" else getattr(problem.pages, name)).copy()
    spoilt[2 if name == "q" else problem.block_tables[2, 0], 0] = np.nan
    got = _run(problem, **{name: spoilt})
    spoilt_row = np.isnan(got[2]).any()
    assert spoilt_row
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(expected, 2, 0))


def test_weights_far_below_the_largest_vanish():
    problem = _problem()
    got = _run(problem, q=problem.q * 1e4)
    assert np.isfinite(got).all()


def _save_one_layer(directory):
    """The bundled model's first layer, which compiles fast, with its tokenizer."""
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    params = load_params(BUNDLED_MODEL, config, "float32")
    params["model"]["layers"] = {"0": params["model"]["layers"]["0"]}
    save_params(params, dataclasses.replace(config, num_hidden_layers=1), directory)
    for file in BUNDLED_MODEL.glob("tokenizer*"):
        shutil.copy(file, directory)


def test_programs_that_were_kept_run_in_a_new_process(tmp_path):
    # XLA finds the compiled function by its name there, too.
    _save_one_layer(tmp_path / "model")
    command = [sys.executable, "-m", "jaxinfer.generate", "-p", "Once", "--max-tokens", "4"]
    command += ["--model", str(tmp_path / "model")]
    command += ["--attention-backend", "numba", "--compilation-cache-dir", str(tmp_path / "kept")]
    command += ["--max-num-seqs", "2", "--max-num-batched-tokens", "64"]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        for _ in range(2)
    )
    assert "Attention: numba" in second.stderr
    assert first.stdout == second.stdout


def test_where_nothing_can_be_kept_it_is_compiled_each_time(monkeypatch):
    def refuse(signature, *, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda handler: _Compiled

    class _Compiled:
        ctypes = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda frame: 0)

    monkeypatch.setattr(call_frame, "cfunc", refuse)
    registered = []
    monkeypatch.setattr(
        jax.ffi, "register_ffi_target", lambda name, *_, platform: registered.append(name)
    )
    call_frame.register("somewhere_read_only", lambda frame: 0)
    assert registered == ["somewhere_read_only"]
