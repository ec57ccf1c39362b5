"""A batch runs without looking for garbage among all of the process's objects."""

import gc

import pytest

from jaxinfer import SamplingParams
from jaxinfer.serving.driver.garbage import few_collections
from tests.serving.small_llm import small_llm


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back_after_the_last_block():
    with few_collections():
        assert gc.get_threshold() == (50_000, 10, 10)
        with few_collections():
            assert gc.get_threshold() == (50_000, 10, 10)
        assert gc.get_threshold() == (50_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_what_a_caller_sets_meanwhile_stays():
    with few_collections():
        gc.set_threshold(900, 9, 9)
    assert gc.get_threshold() == (900, 9, 9)


def test_a_collector_that_is_off_stays_off():
    gc.set_threshold(0, 10, 10)
    with few_collections():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0


def test_they_come_back_when_the_block_raises():
    with pytest.raises(ValueError, match="mine"), few_collections():
        raise ValueError("mine")
    assert gc.get_threshold() == (700, 10, 10)


def test_generate_runs_within_such_a_block():
    seen = []
    params = SamplingParams(max_tokens=2, ignore_eos=True)

    def factory(*args, **kwargs):
        seen.append(gc.get_threshold())
        raise RuntimeError("no bar")

    with small_llm() as llm:
        with pytest.raises(RuntimeError, match="no bar"):
            llm.generate([[1, 2]], params, use_tqdm=factory)
        assert seen == [(50_000, 10, 10)]
        assert gc.get_threshold() == (700, 10, 10)
