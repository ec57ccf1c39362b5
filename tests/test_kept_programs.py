"""What a run of the tests leaves to the next: whole programs, nothing traced, and not too many."""

import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache, compiler

from tests import kept_programs
from tests.kept_programs import KeptPrograms

PROGRAM = compilation_cache.compress_executable(b"program" * 100)


@pytest.fixture
def config(tmp_path):
    """Of pytest, as far as its cache goes."""

    def mkdir(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return tmp_path / name

    return SimpleNamespace(cache=SimpleNamespace(mkdir=mkdir))


def entries(run):
    return {path.name for path in (run.home / "jaxinfer" / "xla").iterdir()}


def write(run, name, data=PROGRAM):
    path = run.home / "jaxinfer" / "xla" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_the_next_run_finds_whole_programs_alone(config):
    first = KeptPrograms(config)
    assert not entries(first)
    write(first, "whole-cache")
    write(first, "cut_short-cache", PROGRAM[:-1])
    write(first, "traced/forward.stablehlo")
    first.keep()
    assert not first.home.exists()
    second = KeptPrograms(config)
    assert entries(second) == {"whole-cache"}
    second.keep()


def test_a_run_that_damages_its_programs_damages_no_other(config):
    first = KeptPrograms(config)
    write(first, "whole-cache")
    first.keep()
    one, other = KeptPrograms(config), KeptPrograms(config)
    (one.home / "jaxinfer" / "xla" / "whole-cache").unlink()
    one.keep()
    assert entries(other) == {"whole-cache"}
    other.keep()


def test_a_run_whose_workers_clear_the_cache_keeps_its_programs(config, tmp_path):
    first = KeptPrograms(config)
    write(first, "whole-cache")
    shutil.rmtree(tmp_path / "jaxinfer_programs")
    first.keep()
    second = KeptPrograms(config)
    assert entries(second) == {"whole-cache"}
    second.keep()


def test_where_there_are_too_many_the_next_run_starts_afresh(config, monkeypatch):
    first = KeptPrograms(config)
    write(first, "whole-cache")
    first.keep()
    monkeypatch.setattr(kept_programs, "_MOST_BYTES", len(PROGRAM) - 1)
    second = KeptPrograms(config)
    assert not entries(second)
    second.keep()


def test_without_pytests_cache_nothing_is_kept():
    run = KeptPrograms(SimpleNamespace())
    write(run, "whole-cache")
    run.keep()
    assert not run.home.exists()


def test_a_program_for_one_emulated_device_is_found_for_another():
    def key(device):
        sharding = jax.sharding.SingleDeviceSharding(device)
        shape = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=sharding)
        lowered = jax.jit(jnp.sin).lower(shape)._lowering
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]])
        )
        return compilation_cache.get_cache_key(
            lowered.stablehlo(), np.array([device]), options, device.client
        )

    assert key(jax.devices()[0]) == key(jax.devices()[3])
