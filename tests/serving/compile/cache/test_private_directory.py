"""Programs are neither kept in nor read from a place that another user could write to."""

import os
import stat

import jax
import pytest

from jaxinfer.serving.compile.cache import private_directory
from jaxinfer.serving.compile.cache.entries import Entries
from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache, store_directory


@pytest.fixture
def give_away(monkeypatch):
    """Makes a path another user's; only root can, so others become somebody else."""

    def give(path):
        if os.geteuid() == 0:
            os.chown(path, 12345, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)

    yield give
    monkeypatch.undo()


@pytest.fixture(autouse=True)
def said_anew():
    private_directory._warn.cache_clear()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_are_made_for_this_user_alone(tmp_path):
    cache = tmp_path / "a" / "xla"
    with persistent_cache(str(cache)) as path:
        assert path == cache
    for kind in ("traced", "compiled"):
        assert store_directory(str(cache), kind) == cache / kind
        assert mode(cache / kind) == 0o700
    assert mode(cache) == 0o700
    Entries(cache / "other", "kind 1", ".x").write("name", b"data")
    assert mode(cache / "other") == 0o700
    assert mode(cache / "other" / "name.x") == 0o600


def refused(directory, caplog):
    """The line that says why nothing is kept there, once however often it is looked at."""
    for _ in range(2):
        with persistent_cache(str(directory)) as path:
            assert path is None
            assert jax.config.jax_compilation_cache_dir is None
        assert store_directory(str(directory), "compiled") is None
    assert not list(directory.iterdir())
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith(f"no programs are kept in or read from {directory}: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize("others", [0o770, 0o775, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused_in_a_line(tmp_path, caplog, others):
    directory = tmp_path / "xla"
    directory.mkdir()
    directory.chmod(others)
    assert f"others may write to it (mode {others:04o}); `chmod go-w`" in refused(directory, caplog)


def test_another_users_directory_is_refused_in_a_line(tmp_path, caplog, give_away):
    directory = tmp_path / "xla"
    directory.mkdir(mode=0o700)
    give_away(directory)
    assert "it belongs to another user (" in refused(directory, caplog)


def test_a_link_to_such_a_directory_is_refused(tmp_path, caplog):
    directory = tmp_path / "theirs"
    directory.mkdir()
    directory.chmod(0o777)
    (tmp_path / "link").symlink_to(directory)
    assert "others may write to it" in refused(tmp_path / "link", caplog)


def test_a_directory_that_everybody_may_replace_is_refused(tmp_path, caplog):
    directory = tmp_path / "open" / "a" / "xla"
    directory.mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    assert f"as {tmp_path / 'open'} has mode 0777" in refused(directory, caplog)
    (tmp_path / "open").chmod(0o1777)  # as /tmp: entries are their owners'
    with persistent_cache(str(directory)) as path:
        assert path == directory


def test_a_kind_of_programs_has_a_directory_of_its_own_that_is_looked_at(tmp_path, caplog):
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled").chmod(0o777)
    assert store_directory(str(tmp_path), "compiled") is None
    assert str(tmp_path / "compiled") in caplog.text
    assert store_directory(str(tmp_path), "traced") == tmp_path / "traced"


def test_another_users_entry_is_none_and_goes(tmp_path, give_away):
    entries = Entries(tmp_path, "kind 1", ".x")
    entries.write("name", b"data")
    assert entries.read("name") == b"data"
    give_away(tmp_path / "name.x")
    assert entries.read("name") is None
    assert not entries.holds("name")
