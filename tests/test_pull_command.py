"""`jaxinfer pull`: what it shows first, takes, keeps and refuses; against a hub on this machine."""

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, file_download

from jaxinfer.__main__ import dispatch
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import hub_model
from jaxinfer.model.checkpoint.hub import resolve_model
from tests.model.checkpoint.fake_hub import COMMIT, FakeHub, FakeModel, plain_files, serving

NAME = "org/tiny"
TAKEN = {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[FakeHub]:
    with serving(monkeypatch, tmp_path / "hub") as hub:
        hub.models[NAME] = FakeModel(plain_files())
        yield hub


def _pull(capsys, *arguments, status=0):
    assert dispatch(["pull", *arguments]) == status
    return capsys.readouterr()


def _refusal(capsys, *arguments):
    output = _pull(capsys, *arguments, status=1)
    assert output.out == ""
    line = output.err.splitlines()[-1]
    assert line.startswith("jaxinfer pull: error: ")
    return line


def test_size_and_licence_come_first_and_only_what_is_read_is_taken(capsys, hub, tmp_path):
    output = _pull(capsys, NAME)
    size = sum(len(hub.models[NAME].files[name]) for name in TAKEN)
    first, second, *files = [line for line in output.err.splitlines() if "|" not in line]
    assert first == f"org/tiny at c0ffee000000: {size} B in 3 files, {size} B to download"
    assert second == "family qwen3, licence apache-2.0"
    assert [line.split()[0] for line in files] == sorted(TAKEN)
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    assert output.out == f"{snapshot}\n"
    assert {path.name for path in snapshot.iterdir()} == TAKEN
    assert set(hub.fetched) == TAKEN


def test_what_was_pulled_is_found_offline_by_its_name(capsys, hub, monkeypatch):
    snapshot = _pull(capsys, NAME, "--revision", "v1", "-q").out.strip()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert str(resolve_model(NAME, "v1")) == snapshot


def test_quiet_leaves_the_directory_alone(capsys, hub):
    output = _pull(capsys, NAME, "-q")
    assert output.err == ""
    assert output.out.count("\n") == 1


def test_a_second_pull_fetches_nothing(capsys, hub):
    _pull(capsys, NAME)
    hub.fetched.clear()
    assert "all in the local cache already" in _pull(capsys, NAME).err
    assert hub.fetched == []


def test_after_a_cut_connection_complete_files_are_kept(capsys, hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.fails.add("model.safetensors")
    assert "complete are kept" in _refusal(capsys, NAME)
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ModelLoadError, match="not in the local cache"):
            resolve_model(NAME)
    hub.fails.clear()
    hub.fetched.clear()
    weights = len(hub.models[NAME].files["model.safetensors"])
    rest = weights + len(hub.models[NAME].files["tokenizer.json"])
    assert f"{rest} B to download" in _pull(capsys, NAME).err
    assert hub.fetched == ["model.safetensors", "tokenizer.json"]


def test_ctrl_c_ends_it_at_once_and_leaves_complete_files_alone(capsys, hub, monkeypatch, tmp_path):
    threads = []

    def interrupted(*_, **__):
        threads.append(threading.current_thread())
        raise KeyboardInterrupt

    monkeypatch.setattr(file_download, "http_get", interrupted)
    with monkeypatch.context() as check:
        check.setattr(hub_model, "check_runs", lambda _: "qwen3")
        assert _pull(capsys, NAME, status=130).out == ""
    assert threads == [threading.main_thread()]  # where signals come
    left = (path.name for path in tmp_path.rglob("*") if "snapshots" in path.parts)
    assert not TAKEN & set(left)


def test_a_classifier_is_downloaded_for_its_family(capsys, hub):
    files = plain_files(architectures=["Qwen3ForSequenceClassification"])
    hub.models[NAME].files = files
    assert "family qwen3" in _pull(capsys, NAME).err
    assert "model.safetensors" in hub.fetched


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        (None, "not stated by the model card"),
        ({}, "not stated by the model card"),
        ({"license": ["mit", "apache-2.0"]}, "mit, apache-2.0"),
        ({"license": "other", "license_name": "its-own"}, "its-own"),
    ],
)
def test_the_licence_is_the_cards(capsys, hub, card, licence):
    hub.models[NAME].card = card
    assert f"licence {licence}\n" in _pull(capsys, NAME).err


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        (plain_files(model_type="mamba"), "no family runs it: model_type is 'mamba' (supported"),
        (plain_files(use_sliding_window=True), "no family runs it: sliding-window attention"),
        ({"model-q4.gguf": b""}, "has no config.json"),
        ({"config.json": b"{}", "a.gguf": b""}, "has no model.safetensors or model.safetensors"),
        ({"config.json": b"{}", "a.gguf": b""}, "; GGUF files (a.gguf) are not read"),
        ({"config.json": b"{}", "a.bin": b""}, "; pickled weights (a.bin) are never loaded"),
    ],
)
def test_what_no_family_runs_is_refused_before_the_download(capsys, hub, tmp_path, files, cause):
    hub.models[NAME].files = files
    assert cause in _refusal(capsys, NAME)
    assert not (tmp_path / "hub").exists()


def test_a_full_disk_is_told_before_the_download(capsys, hub, monkeypatch):
    size = sum(len(hub.models[NAME].files[name]) for name in TAKEN)
    usage = SimpleNamespace(free=size - 1)
    monkeypatch.setattr(hub_model.shutil, "disk_usage", lambda _: usage)
    line = _refusal(capsys, NAME)
    assert f"org/tiny: needs {size} B, and {size - 1} B are free on the disk of" in line
    assert set(hub.fetched) == {"config.json"}


def test_a_gated_model_says_how_to_get_it(capsys, hub):
    hub.models[NAME].is_gated = True
    assert _refusal(capsys, NAME).endswith(
        "org/tiny: the hub asks for access rights to it; log in with `hf auth login`"
    )


def test_an_unknown_model_or_revision_is_said(capsys, hub):
    assert _refusal(capsys, "org/none").endswith("org/none: no such model on the Hugging Face hub")
    line = _refusal(capsys, NAME, "--revision", "v9")
    assert line.endswith("org/tiny: the hub has no revision 'v9' of it")


def test_no_network_is_one_line(capsys, hub, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    line = _refusal(capsys, NAME)
    assert f"org/tiny: can't reach http://127.0.0.1:{port} (" in line


def test_offline_mode_is_respected(capsys, hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    line = _refusal(capsys, NAME)
    assert line.endswith("org/tiny: offline mode is on; unset HF_HUB_OFFLINE to download it")
    assert hub.fetched == []


@pytest.mark.parametrize("name", ["bundled", "bundled-experts"])
def test_a_bundled_model_needs_no_download(capsys, hub, name):
    assert f"{name}: comes with jaxinfer" in _refusal(capsys, name)
    assert hub.fetched == []


def test_a_directory_is_no_hub_id(capsys, hub):
    assert "'./tiny' is not a hub id" in _refusal(capsys, "./tiny")


def test_a_hub_that_fails_is_told_from_no_network(capsys, hub, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.is_down = True
    line = _refusal(capsys, NAME)
    assert "org/tiny: " in line
    assert "503" in line
    assert "can't reach" not in line
