"""Weights go from files to devices in the wanted dtype and sharding, and back to files."""

import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name
from jaxinfer.model.checkpoint.safetensors_file import read_header
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import make_mesh
from tests.lazy import torch, transformers
from tests.model import small_models, tiny


def assert_trees_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), (_, b) in zip(flatten(actual), flatten(expected), strict=True):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=path)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_every_stored_dtype_loads_into_every_wanted_dtype(stored, wanted, tmp_path):
    model = small_models.save(tmp_path, dtype=getattr(torch, stored), num_hidden_layers=1)
    config = ModelConfig.from_directory(tmp_path)
    assert config.dtype == stored
    params = load_params(tmp_path, config, wanted)
    state = model.state_dict()
    for path, leaf in flatten(params):
        expected = state[tensor_name(path)].to(getattr(torch, wanted)).float().numpy()
        assert leaf.dtype == wanted
        np.testing.assert_array_equal(np.asarray(leaf.astype(jnp.float32)), expected, err_msg=path)


def test_transformers_shards_load_like_one_file(tmp_path):
    model = small_models.save(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    config = ModelConfig.from_directory(tmp_path / "one")
    assert_trees_equal(
        load_params(tmp_path / "many", config, "float32"),
        load_params(tmp_path / "one", config, "float32"),
    )


def test_each_device_gets_only_its_slice(tmp_path):
    config = tiny.config(num_key_value_heads=2, tie_word_embeddings=False)
    params = tiny.params(config)
    save_params(params, config, tmp_path)
    mesh = make_mesh(4)
    loaded = load_params(tmp_path, config, jnp.float32, mesh)
    assert_trees_equal(loaded, params)
    expected = dict(flatten(abstract_params(config, jnp.float32, mesh)))
    for path, leaf in flatten(loaded):
        assert leaf.sharding == expected[path].sharding, path
    local = {path: leaf.addressable_shards[0].data.shape for path, leaf in flatten(loaded)}
    assert local["model.embed_tokens"] == (16, 32)
    assert local["model.layers.0.self_attn.q_proj"] == (16, 32)
    assert local["model.layers.0.self_attn.k_proj"] == (16, 32), "2 kv heads on 4 devices: whole"
    assert local["model.layers.0.mlp.down_proj"] == (32, 12)


def test_a_tied_file_that_repeats_its_head_is_accepted(tmp_path):
    """Published small Qwen3s store lm_head.weight beside the embedding it is tied to."""
    params = tiny.params(tiny.CONFIG)
    save_params(params, tiny.CONFIG, tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert_trees_equal(load_params(tmp_path, tiny.CONFIG, "float32"), params)


def test_a_backbone_saved_without_its_prefix_is_accepted(tmp_path):
    params = tiny.params(tiny.CONFIG)
    save_params(params, tiny.CONFIG, tmp_path)
    tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    assert_trees_equal(load_params(tmp_path, tiny.CONFIG, "float32"), params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "attention_bias": True}])
def test_saved_weights_are_what_transformers_and_we_load(dtype, changes, tmp_path):
    config = tiny.config(**changes)
    params = tiny.params(config, dtype)
    save_params(params, config, tmp_path)
    read_back = ModelConfig.from_directory(tmp_path)
    assert read_back.dtype == dtype
    assert_trees_equal(load_params(tmp_path, read_back, dtype), params)
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = tiny.token_ids(config, 1, 12)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens.tolist())).logits.numpy()
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    actual = jax.jit(forward, static_argnums=1)(wide, config, tokens)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_large_models_are_saved_in_shards_with_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_MAX_SHARD_BYTES", 10_000)
    params = tiny.params(tiny.CONFIG)
    save_params(params, tiny.CONFIG, tmp_path)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert index["metadata"]["total_size"] == total
    assert_trees_equal(load_params(tmp_path, tiny.CONFIG, "float32"), params)


def test_a_later_save_of_another_layout_replaces_the_earlier(tmp_path, monkeypatch):
    params = tiny.params(tiny.CONFIG)
    other = jax.tree.map(lambda leaf: leaf + 1, params)
    for limit, tree in ((10**9, params), (10_000, other), (10**9, params)):
        monkeypatch.setattr(weights, "_MAX_SHARD_BYTES", limit)
        save_params(tree, tiny.CONFIG, tmp_path)
        assert_trees_equal(load_params(tmp_path, tiny.CONFIG, "float32"), tree)


def test_written_files_are_valid_for_the_reference_reader(tmp_path):
    params = tiny.params(tiny.CONFIG, "bfloat16")
    save_params(params, tiny.CONFIG, tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        for path, leaf in flatten(params):
            tensor = file.get_tensor(tensor_name(path))
            np.testing.assert_array_equal(tensor, np.asarray(leaf))


def test_saving_over_loaded_files_leaves_the_loaded_arrays_alone(tmp_path):
    params = tiny.params(tiny.CONFIG)
    save_params(params, tiny.CONFIG, tmp_path)
    loaded = load_params(tmp_path, tiny.CONFIG, "float32")
    save_params(jax.tree.map(jnp.zeros_like, params), tiny.CONFIG, tmp_path)
    assert_trees_equal(loaded, params)


def test_unsupported_dtype_is_refused_before_anything_is_written(tmp_path):
    params = jax.tree.map(lambda x: x.astype(jnp.int8), tiny.params(tiny.CONFIG))
    with pytest.raises(TypeError, match=r"can't save dtype int8"):
        save_params(params, tiny.CONFIG, tmp_path)
    assert not any(tmp_path.iterdir())


def test_progress_counts_bytes_up_to_the_whole(tmp_path):
    params = tiny.params(tiny.CONFIG)
    save_params(params, tiny.CONFIG, tmp_path)
    calls = []
    load_params(
        tmp_path, tiny.CONFIG, "float32", progress=lambda done, total: calls.append((done, total))
    )
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len(calls) == len(jax.tree.leaves(params))


@pytest.mark.parametrize(
    "tensor", [np.zeros((0, 4), np.float32), np.array(3.0, np.float32)], ids=["empty", "scalar"]
)
def test_odd_shapes_are_mapped(tensor, tmp_path):
    file = tmp_path / "odd.safetensors"
    safetensors.numpy.save_file({"x": tensor}, file)
    np.testing.assert_array_equal(read_header(file)["x"].mapped(), tensor)


@pytest.mark.slow
def test_host_memory_stays_below_the_parameters_plus_one_tensor(tmp_path):
    """Anonymous memory while 212 MB are loaded: what JAX keeps on the CPU device, and one tensor.

    A loader that kept a host copy of the file, or of each tensor, would need twice as much.
    """
    config = tiny.config(
        vocab_size=8192, hidden_size=2048, intermediate_size=4096, num_hidden_layers=3, head_dim=128
    )
    described = abstract_params(config, jnp.bfloat16)
    leaves = {
        tensor_name(path): np.zeros(leaf.shape, leaf.dtype) for path, leaf in flatten(described)
    }
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf() | {"torch_dtype": "bfloat16"}))
    weights.write_file(tmp_path / "model.safetensors", leaves.items(), leaves)
    largest = max(leaf.nbytes for leaf in leaves.values())
    total = sum(leaf.nbytes for leaf in leaves.values())
    code = f"""
        import threading, time, psutil
        import jax
        from jaxinfer.model.config import ModelConfig
        from jaxinfer.model.checkpoint.weights import load_params
        config = ModelConfig.from_directory({str(tmp_path)!r})
        jax.block_until_ready(jax.numpy.zeros(3))
        process, peak, stop = psutil.Process(), [0], threading.Event()
        def anonymous():
            memory = process.memory_info()
            return memory.rss - memory.shared
        def watch():
            while not stop.is_set():
                peak[0] = max(peak[0], anonymous())
                time.sleep(0.001)
        before = anonymous()
        thread = threading.Thread(target=watch)
        thread.start()
        params = load_params({str(tmp_path)!r}, config, "bfloat16")
        stop.set()
        thread.join()
        print(peak[0] - before)
    """
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    slack = 48 << 20  # compiled checks, and what is imported on the way
    assert total / 2 < int(result.stdout) <= total + largest + slack
