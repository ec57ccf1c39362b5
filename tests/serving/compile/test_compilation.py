import functools

import jax
import jax.numpy as jnp
import pytest
from jax._src import compilation_cache

from jaxinfer.serving.compile.cache.persistent_cache import (
    default_directory,
    persistent_cache,
    store_directory,
)
from jaxinfer.serving.compile.compilation import CompilationCounter, CompiledPrograms


def _lower(size, options=None):
    return jax.jit(lambda x: x * 2 + 1).lower(jax.ShapeDtypeStruct((size,), jnp.float32))


def _programs(directory=""):
    return CompiledPrograms(_lower, lambda key: {}, functools.partial(persistent_cache, directory))


def _settings():
    return {name: value for name, value in jax.config.values.items() if "cache" in name}


@pytest.fixture
def own_listeners(monkeypatch):
    """JAX's listeners in a list of their own, so that a test may remove them all."""
    for kind in ("event", "event_duration_secs", "event_time_span", "scalar"):
        monkeypatch.setattr(f"jax._src.monitoring._{kind}_listeners", [])


def test_a_program_compiles_at_its_first_use_and_never_again():
    programs = _programs()
    counter = CompilationCounter()
    try:
        x = jax.device_put(jnp.ones(3))
        before = counter.count
        assert programs[3](x).tolist() == [3, 3, 3]
        assert counter.count == before + 1
        programs[3](x)
        programs.compile([3, 3], show_progress=False)
        assert counter.count == before + 1
        assert counter.seconds > 0
    finally:
        counter.close()


def test_programs_compiled_ahead_serve_without_compiling(capsys):
    programs = _programs()
    programs.compile([4, 5, 6], show_progress=True)
    assert "Compiling: 100%" in capsys.readouterr().err
    counter = CompilationCounter()
    assert {4, 5, 6} == set(programs)
    programs[4], programs[6]
    assert counter.count == 0
    counter.close()


def test_what_was_begun_is_compiled_by_the_time_it_is_asked_for():
    programs, successor = _programs(), _programs()
    programs.begin([7, 8, 9])
    programs.compile([7], show_progress=False)
    successor.adopt(programs, [7, 8, 9, 10])
    lowered_again = CompiledPrograms(_refuse, lambda key: {})
    lowered_again.adopt(successor, [7, 8, 9])
    lowered_again.compile([9, 8, 7], show_progress=False)
    assert lowered_again[7] is programs[7]
    assert lowered_again[8](jnp.ones(8)).tolist() == [3] * 8


def test_closing_forgets_what_was_begun():
    programs = _programs()
    programs.begin([3, 5])
    programs.close()
    programs.close()
    assert programs[5](jnp.ones(5)).tolist() == [3] * 5


def _refuse(size, options):
    raise AssertionError(f"{size} was lowered again")


def test_a_closed_counter_counts_no_more():
    counter = CompilationCounter()
    counter.close()
    counter.close()
    _lower(7).compile()
    assert counter.count == 0


def test_a_counter_whose_listener_was_removed_says_so_and_counts_on(own_listeners):
    counter = CompilationCounter()
    _lower(11).compile()
    assert counter.count == 1
    jax.monitoring.clear_event_listeners()
    _lower(12).compile()
    with pytest.raises(RuntimeError, match="clear_event_listeners"):
        _ = counter.count
    before = counter.count
    _lower(13).compile()
    assert counter.count == before + 1
    counter.close()
    assert counter.count == before + 1


def test_a_counter_whose_listener_was_removed_closes_quietly(own_listeners):
    counter = CompilationCounter()
    jax.monitoring.clear_event_listeners()
    counter.close()
    _lower(14).compile()
    assert counter.count == 0


def test_a_counter_leaves_listeners_of_others_alone(own_listeners):
    heard = []
    counter, other = CompilationCounter(), CompilationCounter()
    jax.monitoring.register_event_duration_secs_listener(lambda *_, **__: heard.append(1))
    counter.close()
    _lower(15).compile()
    assert (counter.count, other.count) == (0, 1)
    assert heard
    other.close()


def test_a_failure_to_compile_reaches_the_caller():
    programs = CompiledPrograms(_lower, lambda key: {"no_such_option": 1})
    with pytest.raises(Exception, match="no_such_option"):
        programs.compile([1, 2], show_progress=False)


@pytest.mark.slow
def test_the_second_process_finds_programs_on_disk(tmp_path):
    hits = []

    def listen(event, **_):
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        _programs(str(tmp_path / "xla")).compile([8], show_progress=False)
        assert any((tmp_path / "xla").iterdir())
        jax.clear_caches()  # as a new process would begin
        assert not hits
        _programs(str(tmp_path / "xla")).compile([8], show_progress=False)
        assert len(hits) == 1
    finally:
        jax.monitoring.unregister_event_listener(listen)


@pytest.mark.parametrize("damage", ["cut short", "emptied", "overwritten"])
def test_damaged_entries_are_dropped_once_said_and_written_anew(tmp_path, caplog, damage):
    _programs(str(tmp_path)).compile([8, 16], show_progress=False)
    entries = {path: path.read_bytes() for path in tmp_path.glob("*-cache")}
    assert len(entries) == 2
    for path, data in entries.items():
        path.write_bytes(
            {"cut short": data[: len(data) // 2], "emptied": b""}.get(damage, bytes(len(data)))
        )
    said = []
    for _ in range(2):
        jax.clear_caches()  # as a new process would begin
        caplog.clear()
        programs = _programs(str(tmp_path))
        programs.compile([8, 16], show_progress=False)
        assert programs[8](jnp.ones(8))[0] == 3
        said.append([record.getMessage() for record in caplog.records])
    assert said[0] == [
        f"{tmp_path}: dropped 2 damaged entries of the compilation cache; compiled anew"
    ]
    assert said[1] == []
    assert set(tmp_path.glob("*-cache")) == set(entries)


def test_jax_is_left_as_it_was(tmp_path):
    before, read = _settings(), compilation_cache.get_executable_and_time
    with persistent_cache(str(tmp_path)) as path:
        assert path == tmp_path
        assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert _settings() == before
    assert compilation_cache.get_executable_and_time is read


def test_a_cache_that_the_user_configured_is_theirs(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    try:
        before = _settings()
        with persistent_cache(str(tmp_path / "ours")) as path:
            assert path == tmp_path / "theirs"
            assert _settings() == before
        assert not (tmp_path / "ours").exists()
    finally:
        jax.config.update("jax_compilation_cache_dir", None)


def test_no_cache_is_kept_where_none_is_wanted_or_possible(tmp_path):
    (tmp_path / "file").write_text("")
    for directory in ("", str(tmp_path / "file" / "below")):
        with persistent_cache(directory) as path:
            assert path is None
            assert jax.config.jax_compilation_cache_dir is None


def test_the_default_directory_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "jaxinfer" / "xla"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache" / "jaxinfer" / "xla"


@pytest.mark.parametrize("kind", ["traced", "compiled"])
def test_engines_own_programs_lie_below_the_cache(tmp_path, kind):
    assert store_directory(str(tmp_path / "a"), kind) == tmp_path / "a" / kind
    assert store_directory("", kind) is None
    for configured, expected in (
        (str(tmp_path / "theirs"), tmp_path / "theirs" / kind),
        ("gs://bucket/theirs", None),
    ):
        jax.config.update("jax_compilation_cache_dir", configured)
        try:
            assert store_directory(str(tmp_path / "a"), kind) == expected
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
