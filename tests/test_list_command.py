"""`jaxinfer list`: a line for each cached revision, with the family that runs it."""

import json
import os

import pytest

from jaxinfer.__main__ import dispatch
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS
from tests.model.checkpoint.fake_hub import COMMIT, add_cached, plain_files, use_cache

OTHER = "beef" + "1" * 36


@pytest.fixture
def cache(monkeypatch, tmp_path):
    use_cache(monkeypatch, tmp_path / "hub")
    return tmp_path / "hub"


def _list(capsys, *arguments):
    assert dispatch(["list", *arguments]) == 0
    return capsys.readouterr()


def test_the_help_names_the_models_that_need_no_cache(capsys):
    help_text = _list(capsys, "--help").out
    assert all(f" {name}," in help_text or f" {name}." in help_text for name in BUNDLED_MODELS)


def test_a_line_for_each_revision_says_what_runs_it(capsys, cache):
    runs = add_cached(cache, "Org/tiny", plain_files())
    add_cached(cache, "org/bert", plain_files(model_type="bert"), OTHER, "v2")
    old = 1_600_000_000
    for file in runs.iterdir():
        os.utime(file, (old, old))
    title, bert, tiny = _list(capsys).out.splitlines()
    assert title.split() == ["model", "revision", "size", "last", "used", "runs"]
    assert bert.split()[:3] == ["org/bert", "v2", "beef1111"]
    assert "no: model_type is 'bert' (supported" in bert
    assert tiny.split()[:3] == ["Org/tiny", "main", "c0ffee00"]
    size = sum(map(len, plain_files().values()))
    assert tiny.split()[3:5] == [str(size), "B"]
    assert tiny.split()[5] in ("2020-09-13", "2020-09-12")  # by the time zone
    assert tiny.split()[-1] == "qwen3"


def test_json_has_every_field(capsys, cache):
    directory = add_cached(cache, "org/tiny", plain_files())
    for file in directory.iterdir():
        os.utime(file, (1_600_000_000, 1_600_000_000))
    (model,) = json.loads(_list(capsys, "--json").out)
    assert model == {
        "model": "org/tiny",
        "commit": COMMIT,
        "refs": ["main"],
        "bytes": sum(map(len, plain_files().values())),
        "last_used": "2020-09-13T12:26:40+00:00",
        "directory": str(directory),
        "family": "qwen3",
        "obstacle": None,
    }


def test_a_classifier_is_run_by_its_family(capsys, cache):
    add_cached(cache, "org/c", plain_files(architectures=["Qwen3ForSequenceClassification"]))
    (model,) = json.loads(_list(capsys, "--json").out)
    assert (model["family"], model["obstacle"]) == ("qwen3", None)


def test_weights_that_are_missing_are_said(capsys, cache):
    files = plain_files()
    del files["model.safetensors"], files["pytorch_model.bin"]
    add_cached(cache, "org/tiny", files)
    (model,) = json.loads(_list(capsys, "--json").out)
    assert model["family"] is None
    assert model["obstacle"].startswith("no model.safetensors, ")


def test_quiet_is_names_alone(capsys, cache):
    add_cached(cache, "org/tiny", plain_files())
    add_cached(cache, "org/tiny", plain_files(), OTHER, "v2")
    add_cached(cache, "org/another", plain_files())
    assert _list(capsys, "-q").out == "org/another\norg/tiny\n"


def test_datasets_are_left_out_and_a_cut_download_is_named(capsys, cache):
    (cache / "datasets--org--data" / "snapshots").mkdir(parents=True)
    (cache / "models--org--cut" / "blobs").mkdir(parents=True)
    output = _list(capsys)
    assert output.out == ""
    assert "no models in the cache; `jaxinfer pull NAME`" in output.err
    assert "org/cut: what a cut download left" in output.err
    assert json.loads(_list(capsys, "--json").out) == []


def test_without_a_cache_there_are_none(capsys, cache):
    assert not cache.exists()
    assert "no models in the cache" in _list(capsys).err
