"""Every damaged or hostile model directory gives one line that names the file and the cause."""

import json
import os
import pickle
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name
from jaxinfer.model.checkpoint.safetensors_file import write_file
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from tests.model import tiny

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def params():
    return tiny.params(tiny.CONFIG)


@pytest.fixture
def single(params, tmp_path) -> Path:
    save_params(params, tiny.CONFIG, tmp_path)
    return tmp_path


@pytest.fixture
def sharded(params, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(weights, "_MAX_SHARD_BYTES", 60_000)
    save_params(params, tiny.CONFIG, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == list(SHARDS)
    return tmp_path


def refusal(directory: Path, config: ModelConfig = tiny.CONFIG) -> str:
    """The message of the error that loading gives; it is always one short line."""
    with pytest.raises(ModelLoadError) as caught:
        load_params(directory, config, jnp.float32)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < len(str(directory)) * 2 + 300
    return message


def rewrite(file: Path, change) -> None:
    """Replace a file's JSON header by what ``change`` makes of it, keeping the data."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = change(json.loads(content[8 : 8 + length]))
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def edit_index(directory: Path, name: str, file: object) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"][name] = file
    (directory / INDEX).write_text(json.dumps(index))


def write_tensors(directory: Path, params, **replaced) -> None:
    """Write a safetensors file in which some tensors are others, or (None) absent."""
    tensors = {tensor_name(path): np.asarray(leaf) for path, leaf in flatten(params)} | replaced
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    write_file(directory / "model.safetensors", tensors.items(), tensors)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_with_a_hint_and_never_opened(name, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    message = refusal(tmp_path)
    assert name in message
    assert "convert them to safetensors" in message
    assert not (tmp_path / "ran").exists()


def test_a_pickle_under_a_safetensors_name_is_refused(single):
    (single / "model.safetensors").write_bytes(pickle.dumps({"w": list(range(99))}))
    assert "pickled PyTorch file" in refusal(single)


def test_remote_code_in_the_directory_is_not_run(single, params):
    """B1: auto_map and Python files beside the weights change nothing."""
    file = single / "config.json"
    mapping = json.loads(file.read_text())
    mapping["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    file.write_text(json.dumps(mapping))
    for name in ("evil.py", "modeling_qwen3.py", "__init__.py"):
        (single / name).write_text(f"import os; os.mkdir({str(single / 'ran')!r})")
    config = ModelConfig.from_directory(single)
    assert config == tiny.CONFIG
    load_params(single, config, jnp.float32)
    assert not (single / "ran").exists()


def test_an_empty_directory_and_a_missing_one_are_named(tmp_path):
    assert "no model.safetensors" in refusal(tmp_path)
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: no such directory"


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty file"),
        (b"\x10\x00", "truncated: 2 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-LFS pointer"),
        (b"<!DOCTYPE html>\n<html>404</html>", "web page"),
        (b"\n<HTML><body>", "web page"),
        (b"\xff" * 64, "impossible header length"),
        (struct.pack("<Q", 5000) + b"{}", "truncated: 10 bytes end inside the header"),
        (struct.pack("<Q", 2) + b"[]", "header is not a JSON object"),
        (struct.pack("<Q", 3) + b"\xff\xfe{", "header is not a JSON object"),
        (struct.pack("<Q", 90_000) + b"[" * 90_000, "header is not a JSON object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_safetensors_file_is_recognized(content, cause, single):
    (single / "model.safetensors").write_bytes(content)
    message = refusal(single)
    assert "model.safetensors: " in message
    assert cause in message


def test_a_file_cut_short_is_refused_before_memory_is_taken(single, monkeypatch):
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    message = refusal(single)
    assert "model.safetensors: truncated" in message


@pytest.mark.parametrize(
    ("field", "value", "cause"),
    [
        ("data_offsets", [0, 4], "does not fill its 4 bytes"),
        ("data_offsets", [-4, 0], "malformed"),
        ("data_offsets", [0, 2**70], "does not fill"),
        ("data_offsets", [128, 0], "does not fill its -128 bytes"),
        ("data_offsets", [0], "malformed"),
        ("data_offsets", "0", "malformed"),
        ("shape", [2**40, 2**40], "does not fill"),
        ("shape", [True], "malformed"),
        ("shape", [10**9] * 200_000, "malformed"),
        ("shape", [10**4000], "malformed"),
        ("data_offsets", [10**4299 - 128, 10**4299], "malformed"),
        ("data_offsets", [0] * 200_000, "malformed"),
        ("shape", {"0": 1}, "malformed"),
        ("dtype", "F4", "dtype F4; supported: float32"),
        ("dtype", "F64", "dtype F64"),
        ("dtype", ["F32"], "dtype"),
    ],
)
def test_a_lying_header_is_refused(field, value, cause, single):
    def lie(header):
        header["model.norm.weight"][field] = value
        return header

    rewrite(single / "model.safetensors", lie)
    message = refusal(single)
    assert "model.safetensors: tensor 'model.norm.weight'" in message
    assert cause in message


def test_an_entry_beyond_the_end_of_the_file_is_refused(single):
    def move(header):
        begin, end = header["model.norm.weight"]["data_offsets"]
        header["model.norm.weight"]["data_offsets"] = [begin + 10**12, end + 10**12]
        return header

    rewrite(single / "model.safetensors", move)
    assert "truncated" in refusal(single)


def test_a_shape_that_contradicts_the_config_is_refused_before_memory_is_taken(
    single, params, monkeypatch
):
    write_tensors(single, params, **{"model.norm.weight": np.ones(31, np.float32)})
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    message = refusal(single)
    assert "model.norm.weight has shape (31,), config.json implies (32,)" in message


def test_an_absurd_config_is_refused_before_memory_is_taken(single, monkeypatch):
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    absurd = tiny.config(vocab_size=2**24, hidden_size=2**17, intermediate_size=2**20)
    assert "config.json implies (16777216, 131072)" in refusal(single, absurd)
    assert "tensors are missing" in refusal(single, tiny.config(num_hidden_layers=40))


def test_a_missing_and_a_foreign_tensor_are_named(single, params):
    write_tensors(single, params, **{"model.norm.weight": None})
    assert "tensor 'model.norm.weight' is missing" in refusal(single)
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}
    write_tensors(single, params, **bias)
    message = refusal(single)
    assert "tensor 'model.layers.0.self_attn.q_proj.bias' is not in config.json's model" in message


def test_an_untied_model_needs_its_head(single):
    assert "'lm_head.weight'" in refusal(single, tiny.config(tie_word_embeddings=False))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named(value, single, params):
    broken = np.asarray(params["model"]["layers"]["1"]["mlp"]["up_proj"]).copy()
    broken[3, 5] = value
    write_tensors(single, params, **{"model.layers.1.mlp.up_proj.weight": broken})
    message = refusal(single)
    assert message.endswith(
        "model.safetensors: model.layers.1.mlp.up_proj.weight holds NaN or infinity"
    )


def test_weights_too_large_for_float16_are_named(single, params):
    write_tensors(single, params, **{"model.norm.weight": np.full(32, 1e6, np.float32)})
    load_params(single, tiny.CONFIG, jnp.float32)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight holds NaN or infinity"):
        load_params(single, tiny.CONFIG, jnp.float16)


def test_a_missing_shard_is_named(sharded):
    (sharded / SHARDS[1]).unlink()
    assert f"{SHARDS[1]}: missing (named by {INDEX})" in refusal(sharded)


def test_a_shard_without_a_tensor_of_the_index_is_named(sharded):
    edit_index(sharded, "model.layers.9.mlp.up_proj.weight", SHARDS[0])
    assert f"{SHARDS[0]}: lacks 'model.layers.9.mlp.up_proj.weight'" in refusal(sharded)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/../../x.safetensors", "", "\0"]
)
def test_shard_names_that_lead_outside_are_refused(name, sharded):
    edit_index(sharded, "model.norm.weight", name)
    message = refusal(sharded)
    assert INDEX in message
    assert "lies outside the directory" in message


def test_a_pickled_shard_is_refused(sharded):
    (sharded / "shard.bin").write_bytes(b"x")
    edit_index(sharded, "model.norm.weight", "shard.bin")
    assert "pickled weights are never loaded" in refusal(sharded)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": 3}}', "must map tensor names to file names"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_index_is_named(content, cause, sharded):
    (sharded / INDEX).write_text(content)
    message = refusal(sharded)
    assert INDEX in message
    assert cause in message


@pytest.mark.parametrize(
    ("files", "name"),
    [("single", "model.safetensors"), *(("sharded", name) for name in (*SHARDS, INDEX))],
)
@pytest.mark.parametrize("is_relative", [False, True], ids=["absolute", "relative"])
def test_links_out_of_the_directory_are_refused(
    files, name, is_relative, request, tmp_path_factory
):
    directory = request.getfixturevalue(files)
    load_params(directory, tiny.CONFIG, jnp.float32)
    outside = tmp_path_factory.mktemp("outside") / name
    (directory / name).rename(outside)
    (directory / name).symlink_to(
        os.path.relpath(outside, directory) if is_relative else outside.absolute()
    )
    assert refusal(directory) == f"{directory / name}: a link out of the model directory"


def test_a_shard_in_a_linked_directory_is_refused(sharded, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (sharded / SHARDS[0]).rename(outside / SHARDS[0])
    (sharded / "more").symlink_to(outside)
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    for tensor in (name for name, file in weight_map.items() if file == SHARDS[0]):
        edit_index(sharded, tensor, f"more/{SHARDS[0]}")
    assert "a link out of the model directory" in refusal(sharded)


def test_a_dangling_link_a_directory_and_a_link_to_itself_are_named(tmp_path):
    file = tmp_path / "model.safetensors"
    file.symlink_to(tmp_path / "gone")
    assert "model.safetensors: a link to what is missing" in refusal(tmp_path)
    file.unlink()
    file.mkdir()
    assert "not a regular file" in refusal(tmp_path)
    file.rmdir()
    file.symlink_to(file)
    assert "model.safetensors: " in refusal(tmp_path)


@pytest.mark.parametrize("files", ["single", "sharded"])
def test_links_inside_the_directory_and_in_the_hub_cache_are_followed(files, params, request):
    """The cache's snapshots link into the blobs directory beside them."""
    plain = request.getfixturevalue(files)
    repository = plain / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "abc123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in [path.name for path in plain.iterdir() if path.is_file()]:
        (plain / name).rename(blobs / name)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    loaded = load_params(snapshot, ModelConfig.from_directory(snapshot), jnp.float32)
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    link = plain / "link-to-directory"
    link.symlink_to(snapshot)
    load_params(link, tiny.CONFIG, jnp.float32)
    weights_file = next(iter(sorted(snapshot.glob("*.safetensors"))))
    (plain / "secret").write_bytes(weights_file.read_bytes())
    weights_file.unlink()
    weights_file.symlink_to(plain / "secret")
    assert "a link out of the model directory" in refusal(snapshot)
