"""Trees that are remembered are those that Flax traces, of the family that is registered now."""

import dataclasses

import jax.numpy as jnp
import pytest

from jaxinfer import make_mesh
from jaxinfer.model import modules
from jaxinfer.model.families.table import FAMILIES, family_of
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.quantization import Quantization
from tests.model import tiny


@pytest.fixture
def traced(monkeypatch):
    """Models whose modules are made."""
    seen, make = [], modules.Decoder

    def decoder(config, rngs, dtype):
        seen.append((config, jnp.dtype(dtype).name))
        return make(config, rngs, dtype)

    monkeypatch.setattr(modules, "Decoder", decoder)
    return seen


def test_a_model_is_traced_once_for_each_config_and_dtype(traced):
    config = tiny.config(vocab_size=68)
    plain, on_two = (abstract_params(config, "bfloat16", mesh) for mesh in (None, make_mesh(2)))
    assert traced == [(config, "bfloat16")]
    embedding = plain["model"]["embed_tokens"]
    assert (embedding.shape, embedding.dtype, embedding.sharding) == ((68, 32), "bfloat16", None)
    assert len(on_two["model"]["embed_tokens"].sharding.device_set) == 2
    quantized = dataclasses.replace(config, quantization=Quantization("int8"))
    node = abstract_params(quantized, jnp.float32)["model"]["layers"]["0"]["mlp"]["up_proj"]
    assert {name: leaf.dtype.name for name, leaf in node.items()} == {
        "weight": "int8",
        "scale": "float32",
    }
    assert traced[1:] == [(quantized, "float32")]


def test_another_family_of_the_same_name_has_its_own_tree(monkeypatch):
    config = tiny.config(vocab_size=68)
    before = abstract_params(config, "float32")
    family = family_of(config.model_type)

    def renamed(config):
        kinds = family.layer_kinds(config)
        return tuple(dataclasses.replace(kind, norms=("norm", "other_norm")) for kind in kinds)

    other = dataclasses.replace(family, layer_kinds=renamed)
    monkeypatch.setitem(FAMILIES, config.model_type, other)
    after = abstract_params(config, "float32")
    names = [tree["model"]["layers"]["0"].keys() for tree in (before, after)]
    assert names[1] - names[0] == {"norm", "other_norm"}
