"""A process's place comes from arguments or the environment, and a gap in it is named."""

import pytest

from jaxinfer.serving.processes.start import find_place, start_processes

GIVEN = ("10.0.0.1:1234", 2, 1)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_given_is_one_process():
    assert find_place(None, None, None) is None
    start_processes()
    start_processes("10.0.0.1:1234", 1, 0)


def test_arguments_and_environment_fill_each_other_up(monkeypatch):
    expected = {"coordinator_address": GIVEN[0], "num_processes": 2, "process_id": 1}
    assert find_place(*GIVEN) == expected
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", GIVEN[0])
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    assert find_place(None, None, 1) == expected


def test_an_address_may_be_of_ipv6():
    assert find_place("[::1]:80", 2, 0) is not None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((None, 2, 1), r"need coordinator_address too \(or JAX_COORDINATOR_ADDRESS\)"),
        (("a:1", None, 1), "need num_processes too"),
        (("a:1", 2, None), "need process_id too"),
        (("a", 2, 1), "must be HOST:PORT or 'auto', got 'a'"),
        (("a:0", 2, 1), "must be HOST:PORT"),
        (("a:1", 2, 2), "process_id must be from 0 to num_processes - 1, got 2 of 2"),
        (("a:1", 0, 0), "got 0 of 0"),
        ((":1", 2, 0), "must be HOST:PORT"),
        (("a:1", 2.0, 0), "num_processes must be an integer, got 2.0"),
        (("a:1", 2, -1), "got -1 of 2"),
    ],
)
def test_what_is_missing_or_wrong_is_named(given, error):
    with pytest.raises(ValueError, match=error):
        find_place(*given)


def test_a_scheduler_may_know_the_place(monkeypatch):
    given = []
    monkeypatch.setattr("jax.distributed.initialize", lambda **arguments: given.append(arguments))
    monkeypatch.setattr("atexit.register", lambda function: None)
    start_processes("auto")
    assert "coordinator_address" not in given[0]
    assert given[0]["cluster_detection_method"] is None


def test_without_a_scheduler_nothing_is_found(monkeypatch):
    def initialize(**arguments):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr("jax.distributed.initialize", initialize)
    with pytest.raises(ValueError, match="needs Slurm, Kubernetes or MPI, and none was found"):
        start_processes("auto")
