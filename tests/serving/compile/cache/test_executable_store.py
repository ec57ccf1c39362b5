"""Executables from disk do what was compiled; what can't be read or written is compiled anew."""

import os
import subprocess
import sys
import threading
import time
from collections import namedtuple

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.serving.compile.cache import executable_store
from jaxinfer.serving.compile.cache.executable_store import (
    ExecutableStore,
    UnreadableExecutableError,
    compiler_identity,
    keeps_executables,
)
from jaxinfer.serving.compile.compilation import CompilationCounter
from jaxinfer.serving.sampling.layout import SamplingArrays
from scripts.speed.cache_hits import CacheHits

_X = jax.ShapeDtypeStruct((3,), jnp.float32)


def _compiled(factor=2):
    return jax.jit(lambda x: x * factor).lower(_X).compile()


def _devices():
    return jax.devices()[:1]


def _load(store, name="this"):
    return store.load(name, _devices())


def _entry(directory):
    (path,) = directory.iterdir()
    return path


def test_a_program_comes_back_with_its_trees_and_donations(tmp_path):
    def step(pages, given):
        rows, flags = given["rows"], given["sampling"]
        return (pages + rows.sum(), {"flags": flags, "none": None})

    sampling = SamplingArrays(jax.ShapeDtypeStruct((2, 4), jnp.int32), special=None)
    wanted = jax.jit(step, donate_argnums=0).lower(_X, {"rows": _X, "sampling": sampling})
    ExecutableStore(tmp_path / "new").save("this", wanted.compile())
    found = _load(ExecutableStore(tmp_path / "new"))
    pages = jnp.ones(3)
    ones = SamplingArrays(jnp.ones((2, 4), jnp.int32), special=None)
    written, rest = found(pages, {"rows": jnp.arange(3.0), "sampling": ones})
    assert pages.is_deleted()
    assert written.tolist() == [4, 4, 4]
    assert isinstance(rest["flags"], SamplingArrays)
    assert rest["none"] is rest["flags"].special is None
    assert found.memory_analysis().alias_size_in_bytes == 12
    assert "HloModule" in found.as_text()


def test_another_process_finds_what_was_saved(tmp_path):
    script = "\n".join(
        [
            "import sys, jax, jax.numpy as jnp",
            f"from {executable_store.__name__} import ExecutableStore",
            "found = ExecutableStore(sys.argv[1]).load('this', jax.devices()[:1])",
            "print(found(jnp.arange(3.0)).tolist())",
        ]
    )
    ExecutableStore(tmp_path).save("this", _compiled())
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[0.0, 2.0, 4.0]\n", done.stderr


def test_programs_of_several_devices_come_back(tmp_path):
    devices = jax.devices()[2:4]
    mesh = jax.sharding.Mesh(devices, "x")
    halves = jax.NamedSharding(mesh, jax.P("x"))
    given = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=halves)
    compiled = jax.jit(lambda x: x + x.sum(), out_shardings=halves).lower(given).compile()
    ExecutableStore(tmp_path).save("this", compiled)
    found = ExecutableStore(tmp_path).load("this", devices)
    result = found(jax.device_put(jnp.arange(4.0), halves))
    assert result.tolist() == [6, 7, 8, 9]
    assert result.sharding == halves


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:-9] + bytes(9)]
)
def test_a_damaged_entry_is_removed_and_can_be_saved_anew(tmp_path, damage):
    store = ExecutableStore(tmp_path)
    store.save("this", _compiled())
    path = _entry(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert store.holds("this")
    with pytest.raises(UnreadableExecutableError, match="this: it is gone or damaged"):
        _load(store)
    assert not store.holds("this")
    assert not path.exists()
    store.save("this", _compiled())  # tuned beside what runs, so it is not kept
    assert not path.exists()
    another = ExecutableStore(tmp_path)
    another.save("this", _compiled())
    assert another.holds("this")
    assert _load(another)(jnp.ones(3)).tolist() == [2, 2, 2]


def test_what_a_device_can_not_read_is_removed_and_said_once(tmp_path, monkeypatch, caplog):
    store = ExecutableStore(tmp_path)
    for name in ("this", "that"):
        store.save(name, _compiled())

    def refuse(data, devices):
        raise jax.errors.JaxRuntimeError("another driver")

    monkeypatch.setattr(executable_store, "_read", refuse)
    for name in ("this", "that"):
        with pytest.raises(UnreadableExecutableError, match=f"{name}: another driver"):
            _load(store, name)
    assert not list(tmp_path.iterdir())
    (said,) = caplog.records
    assert said.getMessage() == (
        "an executable on disk can't be read (another driver); compiled anew"
    )


def test_the_ones_not_used_for_longest_make_room(tmp_path, monkeypatch):
    store = ExecutableStore(tmp_path)
    for i in range(4):
        store.save(f"{i}", _compiled())
        os.utime(tmp_path / f"{i}.executable", (i, i))
    size = (tmp_path / "0.executable").stat().st_size
    _load(store, "0")
    monkeypatch.setattr(executable_store, "_MOST_BYTES", int(3.5 * size))
    with store.written_in_background():
        store.save("new", _compiled())
    assert {path.stem for path in tmp_path.iterdir()} == {"0", "3", "new"}


def test_a_damaged_entry_that_can_not_be_removed_is_not_held(tmp_path, monkeypatch):
    store = ExecutableStore(tmp_path)
    store.save("this", _compiled())
    _entry(tmp_path).write_bytes(b"")

    def refuse(self, missing_ok=False):
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(UnreadableExecutableError):
        _load(store)
    assert not store.holds("this")


def test_what_calls_back_into_python_is_not_kept(tmp_path):
    def call(x):
        return jax.pure_callback(lambda value: value, _X, x)

    ExecutableStore(tmp_path).save("this", jax.jit(call).lower(_X).compile())
    assert not list(tmp_path.iterdir())


def test_trees_of_classes_that_are_not_in_a_module_are_not_kept(tmp_path):
    Local = namedtuple("Local", "x")
    ExecutableStore(tmp_path).save("this", jax.jit(Local).lower(_X).compile())
    assert not list(tmp_path.iterdir())


def test_a_program_that_is_found_counts_as_found_and_as_new_to_the_process(tmp_path):
    ExecutableStore(tmp_path).save("this", _compiled())
    counter = CompilationCounter()
    with CacheHits() as hits:
        _load(ExecutableStore(tmp_path))
    assert (hits.count, counter.count) == (1, 1)
    assert counter.seconds > 0
    counter.close()


@pytest.fixture
def slow_writes(monkeypatch):
    """The threads that made entries, slowed down."""
    threads, written = [], executable_store._written

    def slow(compiled):
        time.sleep(0.2)
        threads.append(threading.current_thread().name)
        return written(compiled)

    monkeypatch.setattr(executable_store, "_written", slow)
    return threads


def test_entries_are_written_beside_the_compiling_thread_and_are_there_afterwards(
    tmp_path, slow_writes
):
    store = ExecutableStore(tmp_path)
    with store.written_in_background():
        for i in range(3):
            store.save(f"{i}", _compiled(i))
        assert len(slow_writes) < 3
    assert all(store.holds(f"{i}") for i in range(3))
    assert all(name.startswith("jaxinfer-cache") for name in slow_writes)
    store.save("later", _compiled())
    assert slow_writes[3] == threading.current_thread().name


def test_an_interrupt_leaves_what_has_not_begun_to_be_written(tmp_path, slow_writes):
    store, compiled = ExecutableStore(tmp_path), _compiled()

    def interrupted():
        with store.written_in_background():
            for i in range(8):
                store.save(f"{i}", compiled)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(slow_writes) < 8


def test_an_identity_holds_devices_flags_and_options(monkeypatch):
    seen = [compiler_identity(jax.devices()[i : i + 1], {}) for i in (0, 1)]
    seen.append(compiler_identity(jax.devices()[:2], {}))
    seen.append(compiler_identity(_devices(), {"xla_a": 1}))
    assert compiler_identity(_devices(), {"xla_b": 1, "xla_a": 2}) == compiler_identity(
        _devices(), {"xla_a": 2, "xla_b": 1}
    )
    assert compiler_identity(_devices(), {}) == seen[0]
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    seen.append(compiler_identity(_devices(), {}))
    assert len({repr(each) for each in seen}) == len(seen)


class _Device:
    def __init__(self, platform, process_index=0):
        self.platform = platform
        self.process_index = process_index


def test_an_engine_keeps_executables_on_the_gpus_of_one_process(tmp_path):
    gpu, other = _Device("gpu"), _Device("gpu", process_index=1)
    assert keeps_executables([gpu])
    assert keeps_executables([gpu, gpu])
    assert not keeps_executables([gpu, other])
    assert not keeps_executables([_Device("cpu")])
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        assert not keeps_executables([gpu])
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
