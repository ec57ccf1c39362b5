"""A converted GGUF file gives transformers' logits on the weights that the file holds."""

import json
import sys

import jax
import numpy as np
import pytest

from jaxinfer import ModelConfig, load_params
from jaxinfer.convert import main
from jaxinfer.errors import MissingPackageError, ModelLoadError
from jaxinfer.model.checkpoint.gguf import package
from jaxinfer.model.checkpoint.gguf.conversion import convert_gguf
from jaxinfer.model.checkpoint.gguf.header import TYPES, read_header
from jaxinfer.model.checkpoint.gguf.tensors import read_values, rotated_by_halves
from jaxinfer.model.rope_scaling import Llama3RopeScaling
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.model.checkpoint.gguf import files
from tests.model.reference import our_logits, reference_logits

VARIANTS = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-scaling": ("Llama", {"rope_parameters": files.LLAMA3, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {}),
}


@pytest.mark.parametrize(
    "variant",
    [
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS if name != "llama"),
    ],
)
def test_logits_equal_transformers_on_the_dequantized_weights(variant, tmp_path):
    family, changes = VARIANTS[variant]
    model = files.write_model(tmp_path / "x.gguf", family, **changes)
    convert_gguf(tmp_path / "x.gguf", tmp_path / "model", "float32")
    token_ids = np.random.default_rng(1).integers(0, 512, (2, 100), dtype=np.int32)
    expected = reference_logits(model, token_ids)
    actual = our_logits(tmp_path / "model", token_ids)
    assert np.abs(expected).max() > 1, "logits too small for the comparison to mean anything"
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
    config = ModelConfig.from_directory(tmp_path / "model")
    assert config.tie_word_embeddings == model.config.tie_word_embeddings
    assert config.head_dim == 64
    if variant == "llama3-scaling":
        assert config.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 8192)


def test_rows_of_a_head_come_back_in_halves():
    """llama.cpp turns rows 0 and 1 of a head together, Hugging Face rows 0 and D / 2."""
    rows = np.array([0, 2, 1, 3, 4, 6, 5, 7])[:, None]
    assert rotated_by_halves(rows, 2).ravel().tolist() == [*range(8)]


@pytest.mark.parametrize("kind", TYPES)
def test_each_type_is_read_as_the_package_reads_it(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxinfer.model.checkpoint.gguf.tensors._CHUNK", 7 * 512)
    rng = np.random.default_rng(0)
    data = files.blocks(rng.normal(size=(33, 512)).astype(np.float32), kind, rng)
    files.write(tmp_path / "x.gguf", {"general.architecture": "llama"}, {"a": (kind, data)})
    header = read_header(tmp_path / "x.gguf")
    assert header.tensors["a"].shape == (33, 512)
    quants = files.gguf().quants
    expected = quants.dequantize(data, files.gguf().GGMLQuantizationType[kind])
    np.testing.assert_array_equal(read_values(header, "a"), expected)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    files.write_model(path, "Llama", num_hidden_layers=1)
    return path


def test_the_command_writes_a_directory_and_says_so(file, tmp_path, capfd):
    assert main([str(file), str(tmp_path / "model")]) == 0
    error = capfd.readouterr().err
    assert f"wrote {tmp_path / 'model'} (safetensors)" in error
    assert "Loading: 100%" in error
    config = ModelConfig.from_directory(tmp_path / "model")
    assert config.dtype == "bfloat16"
    leaves = jax.tree.leaves(load_params(tmp_path / "model", config, "bfloat16"))
    assert sum(leaf.size for leaf in leaves) > 512 * 256
    tokenizer = Tokenizer.from_directory(tmp_path / "model")
    assert tokenizer.eos_token_ids == config.eos_token_ids
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi"
    tokenizer.close()
    assert main([str(file), str(tmp_path / "wide"), "--dtype", "float32", "-q"]) == 0
    assert ModelConfig.from_directory(tmp_path / "wide").dtype == "float32"
    assert capfd.readouterr().err == ""


def test_mistakes_are_one_line_and_write_nothing(file, tmp_path, capfd):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("precious")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    for arguments, cause in (
        ([str(file), str(tmp_path / "full")], "exists and is not an empty directory"),
        ([str(file), str(tmp_path / "new"), "--to", "orbax"], "becomes safetensors"),
        ([str(tmp_path / "no.gguf"), str(tmp_path / "new")], "no.gguf: no such file"),
        ([str(tmp_path / "bad.gguf"), str(tmp_path / "new")], "bad.gguf: cut short"),
    ):
        assert main([*arguments, "-q"]) == 1
        error = capfd.readouterr().err
        assert error.startswith("jaxinfer convert: error: ")
        assert cause in error
        assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf", "full"]


def test_values_that_a_dtype_can_not_hold_are_named(tmp_path):
    model = files.small_models.build(family="Llama", num_hidden_layers=1, **files.SIZES)
    tensors = files.tensors_of(model, "llama", 1)
    tensors["output_norm.weight"] = "F32", np.full(256, 1e5, np.float32)
    files.write(tmp_path / "x.gguf", files.metadata(model.config, "llama"), tensors)
    with pytest.raises(ValueError, match=r"output_norm.* infinity in float16"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "model", "float16")
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_a_tokenizer_that_could_not_be_served_is_refused_before_anything_is_written(tmp_path):
    model = files.small_models.build(family="Llama", num_hidden_layers=1, **files.SIZES)
    fields = files.metadata(model.config, "llama")
    fields |= {"tokenizer.ggml.tokens": ["a", "b", "<"], "tokenizer.ggml.token_type": [1, 1, 1]}
    fields |= {"tokenizer.ggml.merges": None, "tokenizer.ggml.eos_token_id": 2}
    files.write(tmp_path / "x.gguf", fields, files.tensors_of(model, "llama", 1))
    with pytest.raises(ModelLoadError, match=r"x\.gguf: the tokenizer lacks 253 of the 256 bytes"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_weights_are_taken_one_at_a_time(file, tmp_path, monkeypatch):
    from jaxinfer.model.checkpoint.gguf.tensors import LazyTensor

    read, events = LazyTensor.__array__, []

    def traced(self, *arguments, **options):
        events.append(("read", self.source.name))
        return read(self, *arguments, **options)

    monkeypatch.setattr(LazyTensor, "__array__", traced)
    progress = []
    convert_gguf(file, tmp_path / "model", progress=lambda done, total: progress.append(done))
    assert len(events) == len(set(events)) == len(progress) == len(read_header(file).tensors)
    assert progress == sorted(progress)


def test_a_tokenizer_beside_the_file_is_taken_if_it_has_the_same_tokens(file, tmp_path):
    beside = tmp_path / "model.gguf"
    beside.symlink_to(file)
    backend = files.build_backend()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("mine")
    convert_gguf(beside, tmp_path / "model")
    assert (tmp_path / "model" / "chat_template.jinja").read_text() == "mine"
    assert Tokenizer.from_directory(tmp_path / "model").to_json() == backend.to_str()
    (tmp_path / "chat_template.jinja").unlink()
    convert_gguf(beside, tmp_path / "other")  # the file's own template is better than none
    template = (tmp_path / "other" / "chat_template.jinja").read_text()
    assert template == "{{ messages[0].content }}"
    changed = json.loads(backend.to_str())
    changed["added_tokens"][0]["content"] = "<|other|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"tokenizer\.json: token 400 is '<\|other\|>'"):
        convert_gguf(beside, tmp_path / "again")


def test_without_the_package_the_extra_is_named(file, tmp_path, monkeypatch):
    package.gguf.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'jaxinfer\[gguf\]'"):
        convert_gguf(file, tmp_path / "model")
    package.gguf.cache_clear()
