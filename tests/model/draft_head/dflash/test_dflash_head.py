"""DFlash heads from files compute what an independent implementation does."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.draft_head.dflash.config import read_dflash_config
from jaxinfer.model.draft_head.dflash.forward import block_forward
from jaxinfer.model.draft_head.dflash.layers import features_of
from jaxinfer.model.draft_head.files import read_draft_head
from jaxinfer.model.draft_head.weights import load_draft_head, save_draft_head
from jaxinfer.model.forward import residual_stream
from tests.lazy import torch
from tests.model import tiny
from tests.model.draft_head.dflash.torch_dflash_head import TorchDFlashHead
from tests.model.draft_head.random_head import dflash_config, random_head

MODEL = tiny.config()
OWN = ["embed_tokens", "lm_head"]


def torch_head(directory, model=MODEL):
    """The head in a directory, in PyTorch, over the tiny model's tied embedding."""
    import safetensors.torch

    embedding = torch.from_numpy(np.array(tiny.params(model)["model"]["embed_tokens"]))
    config = json.loads((directory / "config.json").read_text())
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    return TorchDFlashHead(tensors, config, embedding, embedding)


@pytest.mark.parametrize("own", [(), OWN], ids=["the model's vocabulary", "its own"])
@pytest.mark.slow
def test_a_block_behind_a_text(tmp_path, own):
    config = dflash_config(MODEL, draft_vocab_size=40 if own else MODEL.vocab_size, states=(0, 1))
    save_draft_head(random_head(config, own=own), config, tmp_path)
    head = read_draft_head(tmp_path, MODEL, read_dflash_config)
    assert (head.config, head.own) == (config, tuple(own))
    params, reference = load_draft_head(head, "float32"), torch_head(tmp_path)
    tokens, N = tiny.token_ids(MODEL, 20), 5
    _, seen = residual_stream(tiny.params(MODEL), MODEL, tokens, watched=(0, 1))
    features = features_of(params, [seen[0], seen[1]], config)[:-1]
    block = jnp.asarray([int(tokens[-1])] + [config.mask_token_id] * N)
    table = params["embed_tokens"] if own else tiny.params(MODEL)["model"]["embed_tokens"]
    positions = 19 + jnp.arange(N + 1, dtype=jnp.int32)
    visible = jnp.ones((N + 1, 19 + N + 1), bool)
    found = block_forward(params, config, features, table[block], positions, visible)
    states = [torch.from_numpy(np.array(seen[layer])) for layer in (0, 1)]
    expected = reference.hidden(reference.features(states)[:-1], int(tokens[-1]), N)
    assert np.abs(expected.numpy()).max() > 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_several_blocks_at_once_are_those_alone():
    config = dflash_config(MODEL)
    params: Any = jax.tree.map(jnp.asarray, random_head(config))
    features, embeddings = (
        jax.random.normal(jax.random.key(i), (n, MODEL.hidden_size)) for i, n in enumerate((9, 6))
    )
    starts = [4, 7]
    positions = jnp.asarray([start + i for start in starts for i in range(3)], jnp.int32)
    before = jnp.arange(9) < jnp.repeat(jnp.asarray(starts), 3)[:, None]
    block = jnp.repeat(jnp.arange(2), 3)
    visible = jnp.concatenate([before, block[:, None] == block], axis=1)
    found = block_forward(params, config, features, embeddings, positions, visible)
    for i, start in enumerate(starts):
        rows = slice(3 * i, 3 * i + 3)
        alone = block_forward(
            params,
            config,
            features[:start],
            embeddings[rows],
            positions[rows],
            jnp.ones((3, start + 3), bool),
        )
        np.testing.assert_allclose(found[rows], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("own", [(), OWN], ids=str)
def test_a_saved_head_is_read_as_it_was(tmp_path, own):
    config = dflash_config(MODEL, draft_vocab_size=40 if own else MODEL.vocab_size)
    params = random_head(config, own=own)
    save_draft_head(params, config, tmp_path)
    head = read_draft_head(tmp_path, MODEL, read_dflash_config)
    assert head.config == config
    jax.tree.map(np.testing.assert_array_equal, load_draft_head(head, "float32"), params)
    assert load_draft_head(head, "bfloat16")["fc"].dtype == jnp.bfloat16
