"""A process's place comes from arguments or the environment, and a gap in it is named."""

import pytest

from jaxinfer.serving.processes.start import Place, find_place, start_processes

GIVEN = ("10.0.0.1:1234", 2, 1)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)


def test_nothing_given_is_one_process():
    assert find_place(None, None, None, 1) is None
    start_processes()
    start_processes("10.0.0.1:1234", 1, 0)


def test_arguments_and_environment_fill_each_other_up(monkeypatch):
    expected = Place("10.0.0.1", 1234, 2, 1)
    assert find_place(*GIVEN, 1) == expected
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", GIVEN[0])
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    assert find_place(None, None, 1, 1) == expected


def test_an_address_may_be_of_ipv6():
    place = find_place("[::1]:80", 2, 0, 1)
    assert place is not None
    assert (place.host, place.address) == ("::1", "[::1]:80")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((None, 2, 1), r"need coordinator_address too \(or JAX_COORDINATOR_ADDRESS\)"),
        (("a:1", None, 1), "need num_processes too"),
        (("a:1", 2, None), "need process_id too"),
        (("a", 2, 1), "must be HOST:PORT or 'auto', got 'a'"),
        (("a:0", 2, 1), "must be HOST:PORT"),
        (("a:1", 2, 2), "process_id must be from 0 to 1, got 2"),
        (("a:1", 0, 0), "num_processes must be at least 1, got 0"),
        (("a:1", 2.0, 0), "num_processes must be an integer, got 2.0"),
        (("auto", None, None), "needs Slurm, Kubernetes or MPI, and none was found"),
    ],
)
def test_what_is_missing_or_wrong_is_named(given, error):
    with pytest.raises(ValueError, match=error):
        find_place(*given, 1)


def test_slurm_is_asked(monkeypatch):
    variables = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "node[3-4]",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    place = find_place("auto", None, None, 1)
    assert place == Place("node3", 65535 - 2**12 + 1 + 7, 2, 1, [0])
