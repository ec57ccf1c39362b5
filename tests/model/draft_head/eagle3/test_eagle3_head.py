"""Draft heads from files compute what an independent implementation does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.draft_head.eagle3.config import read_eagle3_config
from jaxinfer.model.draft_head.eagle3.forward import draft_forward
from jaxinfer.model.draft_head.eagle3.layer import features_of, guess
from jaxinfer.model.draft_head.files import read_draft_head
from jaxinfer.model.draft_head.weights import load_draft_head, save_draft_head
from jaxinfer.model.forward import forward, residual_stream
from tests.lazy import torch
from tests.model import tiny
from tests.model.draft_head.eagle3.torch_eagle3_head import TorchHead
from tests.model.draft_head.random_head import head_config, random_head

MODEL = tiny.config()
OPTIONS = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
]


def saved(directory, *, has_embedding=False, **options):
    """A head in a directory, and the same in PyTorch."""
    import safetensors.torch

    config = head_config(MODEL, **options)
    save_draft_head(random_head(config, own=["embed_tokens"] * has_embedding), config, directory)
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    embedding = torch.from_numpy(np.array(tiny.params(MODEL)["model"]["embed_tokens"]))
    return TorchHead(tensors, config.to_hf(), embedding)


def states_of(token_ids):
    """The model's hidden states ``[T, E]`` that the head reads, and its embeddings."""
    params = tiny.params(MODEL)
    _, seen = residual_stream(params, MODEL, token_ids, watched=(0, 1))
    return [seen[0], seen[1], seen[1]], seen[0]


@pytest.mark.parametrize("has_embedding", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_sequence_of_true_features(tmp_path, options, has_embedding):
    reference = saved(tmp_path, has_embedding=has_embedding, **options)
    head = read_draft_head(tmp_path, MODEL, read_eagle3_config)
    assert head.config == head_config(MODEL, **options)
    params = load_draft_head(head, "float32")
    token_ids = tiny.token_ids(MODEL, 20)
    states, embeddings = states_of(token_ids)
    if has_embedding:
        embeddings = params["embed_tokens"][token_ids]
    config = head_config(MODEL, **options)
    features = features_of(params, states, config)
    found = draft_forward(params, config, features, embeddings).normed[1:]
    torch_states = [torch.from_numpy(np.array(state)) for state in states]
    expected = reference.teacher_forced(reference.features(torch_states), token_ids.tolist())
    assert np.abs(expected.numpy()).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    scores = (reference.w["lm_head.weight"] @ expected.T).argmax(0)
    assert guess(params, found).tolist() == (scores + reference.w["d2t"][scores]).tolist()


def test_a_model_tells_what_its_layers_read():
    params, token_ids = tiny.params(MODEL), tiny.token_ids(MODEL, 2, 9)
    x, seen = residual_stream(params, MODEL, token_ids, watched=(0, 1))
    np.testing.assert_array_equal(seen[0], params["model"]["embed_tokens"][token_ids])
    one_layer = tiny.config(num_hidden_layers=1)
    behind, _ = residual_stream(params, one_layer, token_ids)
    np.testing.assert_array_equal(seen[1], behind)
    assert not np.allclose(seen[1], x)
    logits = forward(params, MODEL, token_ids)
    assert logits.shape == (2, 9, MODEL.vocab_size)


def test_a_saved_head_is_read_as_it_was(tmp_path):
    config = head_config(MODEL)
    params = random_head(config, own=["embed_tokens"])
    save_draft_head(params, config, tmp_path)
    loaded = load_draft_head(read_draft_head(tmp_path, MODEL, read_eagle3_config), "float32")
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    narrow = load_draft_head(read_draft_head(tmp_path, MODEL, read_eagle3_config), "bfloat16")
    assert narrow["fc"].dtype == jnp.bfloat16
    assert narrow["token_ids"].dtype == jnp.int32


def test_the_other_names_of_the_layer(tmp_path):
    import safetensors.torch

    config = head_config(MODEL)
    params = random_head(config)
    save_draft_head(params, config, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {
        f"model.{name.replace('midlayer.', 'layers.0.')}": tensor
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    tensors["t2d"] = torch.zeros(MODEL.vocab_size, dtype=torch.bool)
    safetensors.torch.save_file(tensors, file)
    jax.tree.map(
        np.testing.assert_array_equal,
        load_draft_head(read_draft_head(tmp_path, MODEL, read_eagle3_config), "float32"),
        params,
    )


def test_a_head_of_the_whole_vocabulary_needs_no_offsets(tmp_path):
    import safetensors.torch

    config = head_config(MODEL, draft_vocab_size=MODEL.vocab_size)
    save_draft_head(random_head(config), config, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    assert not tensors.pop("d2t").any()
    safetensors.torch.save_file(tensors, file)
    loaded = load_draft_head(read_draft_head(tmp_path, MODEL, read_eagle3_config), "float32")
    assert loaded["token_ids"].tolist() == list(range(MODEL.vocab_size))
    assert read_draft_head(tmp_path, MODEL, read_eagle3_config).config == config
