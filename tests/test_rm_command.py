"""`jaxinfer rm`: asks, frees what no other revision needs, and names what it can't find."""

import io

import pytest

from jaxinfer.__main__ import dispatch
from tests.model.checkpoint.fake_hub import COMMIT, add_cached, plain_files, use_cache

OTHER = "beef" + "1" * 36
NAME = "Qwen/Qwen3-0.6B"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def cache(monkeypatch, tmp_path):
    use_cache(monkeypatch, tmp_path / "hub")
    add_cached(tmp_path / "hub", NAME, plain_files())
    return tmp_path / "hub"


def _rm(capsys, *arguments, status=0):
    assert dispatch(["rm", *arguments]) == status
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def _names(cache):
    return {path.name for path in cache.glob("models--*")}


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_a_model_goes_after_a_question(capsys, cache, monkeypatch, answer):
    add_cached(cache, "org/other", plain_files())
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    size = sum(map(len, plain_files().values()))
    said = _rm(capsys, NAME)
    assert said == f"remove {NAME} (1 revision, {size} B)? [y/N] freed {size} B\n"
    assert _names(cache) == {"models--org--other"}
    assert len(list((cache / "models--org--other" / "blobs").iterdir())) == len(plain_files())


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_any_other_answer_removes_nothing(capsys, cache, monkeypatch, answer):
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    assert _rm(capsys, NAME, status=1).endswith("nothing was removed\n")
    assert _names(cache) == {"models--Qwen--Qwen3-0.6B"}


def test_without_a_terminal_it_needs_y(capsys, cache, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert "-y removes without a question" in _rm(capsys, NAME, status=1)
    assert _names(cache)
    assert _rm(capsys, NAME, "-y", "-q") == ""
    assert not _names(cache)


@pytest.mark.parametrize("revision", ["v2", OTHER, "beef1"])
def test_a_revision_goes_with_the_blobs_of_its_own(capsys, cache, revision):
    files = plain_files() | {"tokenizer.json": b'{"newer": 1}'}
    add_cached(cache, NAME, files, OTHER, "v2")
    folder = cache / "models--Qwen--Qwen3-0.6B"
    assert len(list((folder / "blobs").iterdir())) == 6
    assert _rm(capsys, NAME, "--revision", revision, "-y") == "freed 12 B\n"
    assert len(list((folder / "blobs").iterdir())) == 5
    assert [path.name for path in (folder / "snapshots").iterdir()] == [COMMIT]
    assert [path.name for path in (folder / "refs").iterdir()] == ["main"]


def test_the_same_commit_of_another_model_stays(capsys, cache):
    add_cached(cache, "org/copy", plain_files())
    _rm(capsys, NAME, "-y")
    assert _names(cache) == {"models--org--copy"}


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6", "qwen/qwen3-0.6b", "Qwen3-0.6B"])
def test_an_unknown_name_is_told_with_the_nearest(capsys, cache, name):
    said = _rm(capsys, name, "-y", status=1)
    assert said == (f"jaxinfer rm: error: {name}: not in the local cache; did you mean {NAME}?\n")
    assert _names(cache)


@pytest.mark.parametrize("name", ["bundled", "bundled-experts"])
def test_a_bundled_model_stays(capsys, cache, name):
    assert f"{name}: comes with jaxinfer" in _rm(capsys, name, "-y", status=1)


def test_a_name_like_none_is_told_of_the_list(capsys, cache):
    assert "`jaxinfer list` shows what is" in _rm(capsys, "zzz", "-y", status=1)


def test_an_empty_cache_is_said(capsys, monkeypatch, tmp_path):
    use_cache(monkeypatch, tmp_path / "none")
    assert "not in the local cache, which has no models" in _rm(capsys, NAME, "-y", status=1)


@pytest.mark.parametrize(("revision", "holds"), [("v9", "no revision"), ("", "no revision")])
def test_an_unknown_revision_is_told_with_the_known_ones(capsys, cache, revision, holds):
    said = _rm(capsys, NAME, "-y", "--revision", revision, status=1)
    assert f"the cache holds {holds} {revision!r}; it has {COMMIT}, main" in said
    assert _names(cache)


def test_a_beginning_that_several_commits_have_is_refused(capsys, cache):
    add_cached(cache, NAME, plain_files(), "c0ffee" + "1" * 34, "v2")
    said = _rm(capsys, NAME, "-y", "--revision", "c0ffee", status=1)
    assert "the cache holds several revisions 'c0ffee'" in said


def test_what_a_cut_download_left_can_be_removed(capsys, cache):
    blobs = cache / "models--org--cut" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "x.incomplete").write_bytes(bytes(2000))
    assert _rm(capsys, "org/cut", "-y") == "freed 2.0 kB\n"
    assert not blobs.parent.exists()
