"""Whatever a user calls a model becomes a directory, or one line that says why not."""

import pathlib
import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import errors

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL, BUNDLED_MODELS, resolve_model


def refusal(*arguments) -> str:
    with pytest.raises(ModelLoadError) as caught:
        resolve_model(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_model_means_the_bundled_one():
    assert resolve_model(None) == BUNDLED_MODEL
    assert BUNDLED_MODEL.parts[-3:] == ("jaxinfer", "assets", "model")


def test_bundled_models_have_names_that_a_path_is_not(tmp_path, monkeypatch):
    assert resolve_model("bundled") == BUNDLED_MODEL
    assert resolve_model("bundled-experts") == BUNDLED_MODEL.with_name("experts_model")
    monkeypatch.chdir(tmp_path)
    for name, directory in BUNDLED_MODELS.items():
        (tmp_path / name).mkdir()
        assert resolve_model(name) == directory
        assert resolve_model(pathlib.Path(name)) == resolve_model(f"./{name}") == pathlib.Path(name)


def test_a_directory_is_itself(tmp_path, monkeypatch):
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model("~/model") == tmp_path / "model"


@pytest.mark.parametrize("path", ["/no/such/dir", "./nowhere", "../nowhere", "a/b/c", "x\n/y", "-"])
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", pytest.fail)
    with pytest.raises(ModelLoadError, match="no such directory"):
        resolve_model(path)


def test_an_empty_name_is_refused_rather_than_read_as_here():
    assert "an empty name" in refusal("")


def test_a_file_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("")
    assert refusal(str(file)).endswith("is a file; give the directory that holds config.json")


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_gguf_file_is_to_be_converted_first(tmp_path, kind):
    file = tmp_path / "model.Q4_K_M.GGUF"
    assert refusal(kind(file)) == f"{file}: no such file"
    file.write_text("")
    assert f"{file}: a GGUF file; convert it first: jaxinfer convert {file} " in refusal(kind(file))
    (tmp_path / "directory.gguf").mkdir()
    assert resolve_model(tmp_path / "directory.gguf") == tmp_path / "directory.gguf"


def test_offline_mode_is_respected_and_said():
    """The suite runs with HF_HUB_OFFLINE=1: nothing is fetched."""
    assert "offline mode is on" in refusal("no-such-org/no-such-model")


def test_a_cached_snapshot_is_found_offline(tmp_path):
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    references = snapshot.parent.parent / "refs"
    references.mkdir()
    (references / "main").write_text("a" * 40)
    code = (
        "from jaxinfer.model.checkpoint.hub import resolve_model; print(resolve_model('org/name'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == str(snapshot)


def test_only_weights_and_text_are_asked_of_the_hub(tmp_path, monkeypatch):
    asked = {}

    def download(name, *, revision, allow_patterns):
        asked.update(name=name, revision=revision, patterns=allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("Qwen/Qwen3-0.6B", "v1") == tmp_path
    assert (asked["name"], asked["revision"]) == ("Qwen/Qwen3-0.6B", "v1")
    assert not any(
        pattern.endswith((".py", ".bin", ".pt", "*"))
        for pattern in asked["patterns"]
        if pattern != "chat_template.*"
    )
    assert "additional_chat_templates/*.jinja" in asked["patterns"]
    of_vectors = {"modules.json", "*_Pooling/config.json", "config_sentence_transformers.json"}
    assert of_vectors <= set(asked["patterns"])


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("Qwen3-0.6B", "; give the hub id, Qwen/Qwen3-0.6B ("),
        (
            "gpt2",
            "; give the hub id with its owner, OWNER/gpt2 (`jaxinfer pull` downloads it), or a",
        ),
        ("a/b", ""),
    ],
)
def test_a_name_without_its_owner_is_completed(name, hub_id, monkeypatch):
    def download(*_, **__):
        raise errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    message = refusal(name)
    assert hub_id in message
    assert ("jaxinfer pull" in message) == bool(hub_id)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (errors.LocalEntryNotFoundError("long\nstory"), "not in the local cache"),
        (errors.HFValidationError("Repo id must be\nfine"), "Repo id must be"),
        (OSError("disk full"), "disk full"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_the_hubs_errors_become_one_line(error, cause, monkeypatch):
    def download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    message = refusal("org/name")
    assert message.startswith("org/name: ")
    assert cause in message
