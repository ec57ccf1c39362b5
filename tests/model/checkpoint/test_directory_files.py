"""Whatever a model directory has in a text file's place is one line, at once and within memory."""

import json
import os
import resource
import shutil
from pathlib import Path

import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import orbax_files
from jaxinfer.model.checkpoint.conversion import convert_directory
from jaxinfer.model.checkpoint.directory_files import read_file, read_json
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model import tiny
from tests.model.text.small_tokenizer import write_tokenizer

TEXT_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
)


@pytest.fixture
def directory(tmp_path) -> Path:
    """A model directory with each file that is read as text."""
    directory = write_tokenizer(tmp_path / "model")
    (directory / "config.json").write_text(json.dumps(tiny.CONFIG.to_hf()))
    (directory / "added_tokens.json").write_text("{}")
    (directory / "special_tokens_map.json").write_text("{}")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    return directory


def read(directory):
    ModelConfig.from_directory(directory)
    Tokenizer.from_directory(directory)


def refusal(action, *args):
    with pytest.raises(ModelLoadError) as caught:
        action(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", TEXT_FILES)
@pytest.mark.parametrize("kind", ["pipe", "zeros", "directory", "link", "dangling", "itself"])
def test_what_is_no_file_of_the_directory_is_refused_by_name(directory, name, kind):
    read(directory)
    file = directory / name
    outside = directory.parent / "outside"
    shutil.move(file, outside)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        targets = {"zeros": "/dev/zero", "link": outside, "dangling": "gone", "itself": file}
        file.symlink_to(targets[kind])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refusal(read, directory).startswith(f"{file}: ")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize("name", TEXT_FILES)
def test_a_file_that_is_too_large_is_refused_unread(directory, name):
    os.truncate(directory / name, 1 << 40)  # sparse
    assert refusal(read, directory).startswith(f"{directory / name}: larger than ")


def test_links_within_the_directory_and_into_the_hubs_blobs_are_followed(directory):
    blobs = directory.parent / "models--a--b" / "blobs"
    snapshot = blobs.parent / "snapshots" / "1234"
    (snapshot / "additional_chat_templates").mkdir(parents=True)
    blobs.mkdir()
    for i, name in enumerate(TEXT_FILES):
        (directory / name).rename(blobs / str(i))
        (snapshot / name).symlink_to(os.path.relpath(blobs / str(i), (snapshot / name).parent))
    read(snapshot)
    (snapshot / "chat_template.jinja").unlink()
    (snapshot / "chat_template.jinja").symlink_to("additional_chat_templates/tool_use.jinja")
    tokenizer = Tokenizer.from_directory(snapshot)
    assert tokenizer.chat_template == "tools"


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x")
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    assert refusal(read_file, tmp_path, "x", 9).endswith("x: not a regular file")


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "\xff", '{"a": ' + "9" * 5000 + "}"])
def test_what_is_no_json_object_is_named(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    assert "x.json: " in refusal(read_json, tmp_path, "x.json", 1 << 20)


def test_a_pipe_in_an_orbax_checkpoint_is_refused(tmp_path):
    orbax_files.save(tiny.params(tiny.CONFIG), tmp_path)
    metadata = tmp_path / "orbax" / "_METADATA"
    metadata.unlink()
    os.mkfifo(metadata)
    message = refusal(orbax_files.restore, tmp_path, tiny.params(tiny.CONFIG))
    assert message == f"{metadata}: not a regular file"


def test_convert_copies_no_link_out_of_the_directory(directory, tmp_path):
    from jaxinfer.model.checkpoint.weights import save_params

    save_params(tiny.params(tiny.CONFIG), tiny.CONFIG, directory)
    secret = tmp_path / "secret"
    secret.write_text("s")
    file = directory / "additional_chat_templates" / "tool_use.jinja"
    file.unlink()
    file.symlink_to(secret)
    message = refusal(convert_directory, directory, tmp_path / "converted")
    assert message == f"{file}: a link out of the model directory"
    assert not (tmp_path / "converted").exists()
