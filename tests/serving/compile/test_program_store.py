from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import pytest

import jaxinfer
from jaxinfer.serving.compile import program_store
from jaxinfer.serving.compile.program_store import ProgramStore, identity_of


def _exported(factor=2):
    return jax.export.export(jax.jit(lambda x: x * factor))(jax.ShapeDtypeStruct((3,), jnp.float32))


def _entry(directory):
    (path,) = directory.iterdir()
    return path


def test_another_process_finds_what_was_saved(tmp_path):
    ProgramStore(tmp_path / "new").save("this", _exported())
    found = ProgramStore(tmp_path / "new").load("this")
    assert found.call(jnp.arange(3.0)).tolist() == [0, 2, 4]
    assert ProgramStore(tmp_path / "new").load("that") is None


@pytest.mark.parametrize("place", [0, 20, 60, 90, -1])
def test_a_damaged_entry_is_none(tmp_path, place):
    store = ProgramStore(tmp_path)
    store.save("this", _exported())
    path = _entry(tmp_path)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert store.load("this") is None
    store.save("this", _exported())
    assert store.load("this") is not None


@pytest.mark.parametrize("length", [0, 10, 60, 200])
def test_an_entry_that_is_cut_short_is_none(tmp_path, length):
    store = ProgramStore(tmp_path)
    store.save("this", _exported())
    path = _entry(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert store.load("this") is None


def test_an_entry_under_another_entrys_name_is_none(tmp_path):
    store = ProgramStore(tmp_path)
    store.save("this", _exported())
    first = _entry(tmp_path)
    data = first.read_bytes()
    first.unlink()
    store.save("that", _exported(3))
    _entry(tmp_path).write_bytes(data)
    assert store.load("that") is None


def test_a_directory_that_cannot_be_written_costs_nothing_but_the_entry(tmp_path):
    (tmp_path / "file").write_text("")
    store = ProgramStore(tmp_path / "file" / "below")
    store.save("this", _exported())
    assert store.load("this") is None


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    ProgramStore(tmp_path).save("this", _exported())
    assert list(tmp_path.iterdir()) == []


def test_the_identity_holds_versions_settings_and_source(monkeypatch):
    before = identity_of("a")
    assert before == identity_of("a") != identity_of("b")
    with jax.default_matmul_precision("highest"):
        assert identity_of("a") != before
    monkeypatch.setattr(program_store, "_source_digest", lambda: "edited")
    program_store._environment.cache_clear()
    assert identity_of("a") != before
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    program_store._environment.cache_clear()
    assert identity_of("a") != before
    monkeypatch.undo()
    program_store._environment.cache_clear()
    assert identity_of("a") == before


def test_the_source_of_an_identity_is_that_of_the_whole_package():
    package = Path(jaxinfer.__file__).parent
    sources = {str(path.relative_to(package)) for path in program_store._sources()}
    assert {"config.py", "kernels/choice.py", "model/forward.py", "serving/llm.py"} <= sources
