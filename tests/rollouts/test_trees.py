"""Whatever holds the arrays, they are found by the engine's paths."""

import dataclasses
import types
from typing import Any

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxinfer.model.modules import Decoder
from jaxinfer.rollouts.trees import leaves_by_path, nested
from tests.serving.small_llm import CONFIG, small_params


class Plain:
    """A module that JAX knows nothing of, with settings beside its arrays."""

    def __init__(self, **attributes: Any) -> None:
        self.eps, self.name, self.parent = 1e-6, "plain", self
        vars(self).update(attributes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """As Equinox registers modules: attributes are children; functions are leaves."""

    weight: Any
    bias: Any
    activation: Any = jax.nn.silu


class Boxed:
    """A variable that is read by ``[...]``."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]


def _objects(node: Any) -> Any:
    if isinstance(node, dict):
        return Plain(**{key: _objects(child) for key, child in node.items()})
    return node


def _keys_as_integers(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    return {int(k) if k.isdigit() else k: _keys_as_integers(child) for k, child in node.items()}


def _with_names_of_a_state_dict(node: Any) -> Any:
    return {f"{path}.weight": leaf for path, leaf in leaves_by_path(node).items()}


SAME = {
    "dictionaries": lambda tree: tree,
    "integer keys": _keys_as_integers,
    "FrozenDict": flax.core.freeze,
    "Linen variables": lambda tree: {"params": tree},
    "a mapping that JAX does not know": types.MappingProxyType,
    "objects": _objects,
    "variables": lambda tree: jax.tree.map(nnx.Param, tree),
    "boxes": lambda tree: jax.tree.map(lambda leaf: Boxed(np.asarray(leaf)), tree),
    "a state_dict": _with_names_of_a_state_dict,
}


@pytest.mark.parametrize("name", SAME)
def test_every_kind_of_tree_has_the_same_paths(name):
    tree = nested(leaves_by_path(SAME[name](small_params())))
    assert jax.tree.structure(tree) == jax.tree.structure(small_params())
    jax.tree.map(np.testing.assert_array_equal, tree, small_params())


def test_arrays_are_not_copied():
    tree = nested(leaves_by_path(SAME["FrozenDict"](small_params())))
    assert tree["model"]["norm"] is small_params()["model"]["norm"]


def test_nnx_modules_and_states_are_trees():
    model = Decoder(CONFIG, nnx.Rngs(params=0), jnp.float32)
    paths = leaves_by_path(small_params()).keys()
    for tree in (nnx.state(model, nnx.Param), model, nnx.to_pure_dict(nnx.state(model))):
        assert leaves_by_path(tree).keys() == paths


def test_equinox_modules_are_trees():
    eqx = pytest.importorskip("equinox")

    def linear(weight):
        layer = eqx.nn.Linear(*weight.shape[::-1], use_bias=False, key=jax.random.key(0))
        return eqx.tree_at(lambda each: each.weight, layer, weight)

    class Layer(eqx.Module):
        self_attn: dict
        mlp: dict
        input_layernorm: Any
        post_attention_layernorm: Any
        activation: Any = jax.nn.silu

    def norm(scale):
        layer = eqx.nn.RMSNorm(scale.shape, use_bias=False)
        return eqx.tree_at(lambda each: each.weight, layer, scale)

    def module(node):
        if isinstance(node, dict):
            children = {key: module(child) for key, child in node.items()}
            return Layer(**children) if "mlp" in node else children
        return norm(node) if node.ndim == 1 else linear(node)

    model = module(small_params())
    for tree in (model, eqx.filter(model, eqx.is_array)):
        jax.tree.map(np.testing.assert_array_equal, nested(leaves_by_path(tree)), small_params())


def test_registered_modules_give_their_attributes_and_no_functions():
    layer = Linear(jnp.ones((2, 3)), jnp.zeros(2))
    found = leaves_by_path({"model": {"layers": [{"q_proj": layer}]}})
    assert {path: leaf.shape for path, leaf in found.items()} == {
        "model.layers.0.q_proj": (2, 3),
        "model.layers.0.q_proj_bias": (2,),
    }


@pytest.mark.parametrize("given", ["dir", 3, None, np.ones(2)])
def test_what_is_no_tree_is_a_type_error(given):
    with pytest.raises(TypeError, match="params must be a Mapping, got"):
        leaves_by_path(given)


def test_one_path_in_two_spellings_is_refused():
    with pytest.raises(ValueError, match=r"params have a\.b twice"):
        leaves_by_path({"a": {"b": np.ones(1)}, "a.b.weight": np.ones(1)})


def test_a_path_that_is_leaf_and_node_is_refused():
    with pytest.raises(ValueError, match=r"params have a"):
        nested({"a": np.ones(1), "a.b": np.ones(1)})
    with pytest.raises(ValueError, match=r"params have a"):
        nested({"a.b": np.ones(1), "a": np.ones(1)})
