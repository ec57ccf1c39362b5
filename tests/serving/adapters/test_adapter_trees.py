"""Adapters of trees like earlier ones: made without looking at each leaf, and refused as before."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.adapters.shape import AdapterShape
from jaxinfer.serving import adapter_trees
from jaxinfer.serving.adapter_trees import AdapterTrees
from tests.serving.adapters.small_adapters import matrices, tree
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, ids, small_llm

SHAPE = AdapterShape(CONFIG, np.dtype(np.float32), 4)


def peft(seed, rank=4):
    """On the device, with PEFT's names."""
    return {name: jnp.asarray(leaf) for name, leaf in tree(matrices(seed, rank)).items()}


def qwix(seed, rank=4):
    """Nested, with qwix's names and axes."""
    nested = {}
    for target, each in matrices(seed, rank).items():
        part = nested.setdefault("layers", {}).setdefault(target.layer, {})
        own = part.setdefault(target.part, {}).setdefault(target.name, {})
        heads = 8 if target.name == "q_proj" else 1
        own["w_lora_a"] = jnp.asarray(each.a.T)
        own["w_lora_b"] = jnp.asarray(each.b.T.reshape(each.b.shape[1], heads, -1))
    return nested


@pytest.fixture
def looks(monkeypatch):
    """One entry for each tree whose leaves were looked at."""
    looked, look = [], adapter_trees.leaves_by_path

    def count(given):
        looked.append(given)
        return look(given)

    monkeypatch.setattr(adapter_trees, "leaves_by_path", count)
    return looked


def assert_is(adapter, seed, scale=0.5, rank=4, *, is_there=True):
    """`is_there`: whether nothing has gone through the host."""
    found = {t: each._replace(scale=scale) for t, each in matrices(seed, rank).items()}
    wanted = SHAPE.adapter("wanted", None, found).matrices
    assert {isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(adapter.matrices)} == {is_there}
    jax.tree.map(np.testing.assert_array_equal, adapter.matrices, wanted)


@pytest.mark.parametrize("form", [peft, qwix])
def test_a_tree_like_an_earlier_one_is_not_looked_at(form, looks):
    trees = AdapterTrees(SHAPE)
    first = trees.adapter("a", form(0), 0.5)
    second = trees.adapter("a", form(1), 0.25)
    assert len(looks) == 1
    assert second.version > first.version
    assert_is(first, 0)
    assert_is(second, 1, scale=0.25)
    assert_is(trees.adapter("a", form(2, rank=2), 0.5), 2, rank=2)  # other shapes
    assert len(looks) == 2


@pytest.mark.parametrize("form", [peft, qwix, lambda seed: tree(matrices(seed))])
def test_a_trainers_settings_of_jax_do_not_matter(form):
    trees, given = AdapterTrees(SHAPE), [form(0), form(1)]
    with (
        jax.transfer_guard("disallow_explicit"),
        jax.enable_x64(True),
        jax.numpy_rank_promotion("raise"),
        jax.disable_jit(),
    ):
        adapters = [trees.adapter("a", each, 0.5) for each in given]
    for seed, adapter in enumerate(adapters):
        assert_is(adapter, seed, is_there=form in (peft, qwix))


def test_the_order_of_names_does_not_matter(looks):
    trees = AdapterTrees(SHAPE)
    trees.adapter("a", peft(0), 0.5)
    assert_is(trees.adapter("a", dict(reversed(peft(1).items())), 0.5), 1)
    assert len(looks) == 1


def test_each_engine_remembers_a_few_kinds(looks, monkeypatch):
    monkeypatch.setattr(adapter_trees, "_MOST_KNOWN", 1)
    trees = AdapterTrees(SHAPE)
    for form in (peft, qwix, peft):
        assert_is(trees.adapter("a", form(3), 0.5), 3)
    assert len(looks) == 3


def _with(change):
    """A later tree with its last leaf changed."""
    leaves = peft(1)
    name = list(leaves)[-1]
    leaves[name] = change(leaves[name])
    return leaves


def _deleted(leaf):
    leaf.delete()
    return leaf


LAST = f"layers.{CONFIG.num_hidden_layers - 1}.mlp.down_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda leaf: leaf.at[0, 0].set(jnp.nan), f"adapter 'a': {LAST} holds NaN or infinity"),
        (lambda leaf: leaf.at[0, 0].set(jnp.inf), f"adapter 'a': {LAST} holds NaN or infinity"),
        (_deleted, f"{LAST}.lora_B was deleted, or donated to a program"),
        (lambda leaf: leaf[:-1], f"adapter 'a': {LAST} maps 64 inputs to 31 outputs"),
        (lambda leaf: leaf[:, :-1], f"adapter 'a': {LAST}: lora_A .* are no pair"),
    ],
)
def test_what_is_wrong_with_a_later_tree_is_named(change, message):
    trees = AdapterTrees(SHAPE)
    trees.adapter("a", peft(0), 0.5)
    with pytest.raises(ValueError, match=message) as error:
        trees.adapter("a", _with(change), 0.5)
    assert "\n" not in str(error.value)
    assert_is(trees.adapter("a", peft(1), 0.5), 1)


def test_ranks_and_scales_of_later_trees_are_checked():
    trees = AdapterTrees(SHAPE)
    trees.adapter("a", peft(0), 0.5)
    with pytest.raises(ValueError, match="has rank 5, above max_lora_rank=4"):
        trees.adapter("a", peft(0, rank=5), 0.5)
    with pytest.raises(ValueError, match="NaN or infinity"):
        trees.adapter("a", peft(0), float("nan"))
    with pytest.raises(TypeError, match="scale must be a number"):
        trees.adapter("a", peft(0), "1")


@pytest.mark.parametrize("other", [np.asarray, lambda leaf: jax.device_put(leaf, jax.devices()[1])])
def test_leaves_elsewhere_go_through_the_host(other, looks):
    trees = AdapterTrees(SHAPE)
    trees.adapter("a", peft(0), 0.5)
    leaves = jax.device_put(peft(1), jax.devices()[0])  # nothing moves it from there
    last = next(reversed(leaves))
    assert_is(trees.adapter("a", leaves | {last: other(leaves[last])}, 0.5), 1, is_there=False)
    assert len(looks) == 2


def test_all_leaves_on_another_device_stay_there(looks):
    other = jax.devices()[1]
    places = (jax.sharding.SingleDeviceSharding(jax.devices()[0]),) * 14
    trees = AdapterTrees(dataclasses.replace(SHAPE, places=places))
    trees.adapter("a", peft(0), 0.5)
    for seed in (1, 2):
        adapter = trees.adapter("a", jax.device_put(peft(seed), other), 0.5)
        assert_is(adapter, seed)
        leaves = jax.tree.leaves(adapter.matrices)
        assert {each.sharding.device_set.pop() for each in leaves} == {other}
    assert len(looks) == 2  # once for each device


def test_an_array_that_two_matrices_share_is_looked_at_each_time(looks):
    trees = AdapterTrees(SHAPE)
    for seed in (0, 1):
        leaves = peft(seed)
        first, second = (f"base_model.model.model.layers.{i}.mlp.up_proj" for i in (0, 1))
        leaves[f"{second}.lora_A.weight"] = leaves[f"{first}.lora_A.weight"]
        adapter = trees.adapter("a", leaves, 0.5)
        stacked = adapter.matrices["mlp"]["up_proj"]["a"]
        np.testing.assert_array_equal(stacked[0], stacked[1])
    assert len(looks) == 2


@jax.tree_util.register_pytree_with_keys_class
class Incomparable:
    """A node of a trainer, whose settings Python does not compare."""

    def __init__(self, leaves, settings):
        self.leaves, self.settings = leaves, settings

    def tree_flatten_with_keys(self):
        key = jax.tree_util.DictKey
        children = [(key(name), leaf) for name, leaf in self.leaves.items()]
        return children, {"names": list(self.leaves), "settings": self.settings}

    @classmethod
    def tree_unflatten(cls, aux, leaves):
        return cls(dict(zip(aux["names"], leaves, strict=True)), aux["settings"])


def test_nodes_that_can_not_be_compared_are_looked_at_each_time(looks):
    trees = AdapterTrees(SHAPE)
    for seed in (0, 1):
        assert_is(trees.adapter("a", Incomparable(peft(seed), np.arange(3)), 0.5), seed)
    assert len(looks) == 2


def test_updates_compile_nothing_and_are_written_where_they_lie(looks):
    options = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
    with small_llm(**options) as llm:
        llm.load_adapter("a", peft(0), scale=0.5)
        answers = [ids(llm.generate(PROMPTS, GREEDY, lora_request="a"))]
        before = llm.num_compilations
        for seed in (1, 0, 2):
            llm.update_adapter("a", peft(seed), scale=0.5)
            answers.append(ids(llm.generate(PROMPTS, GREEDY, lora_request="a")))
        assert llm.num_compilations == before
        assert len(looks) == 1
        assert answers[2] == answers[0]
        assert answers[1] != answers[0]
        adapters = llm._handle.arguments.adapters
        matrices_of = jax.tree.leaves(adapters.find("a").matrices)
        assert [each.sharding for each in matrices_of] == list(adapters._shape.places)
