"""A trainer's own names of LoRA matrices, mapped to PEFT's; also of stacked layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import ParamsMapping, ParamSource
from jaxinfer.model.adapters.shape import AdapterShape
from jaxinfer.rollouts.adapter_leaves import mapped_adapter
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.trees import leaves_by_path
from jaxinfer.serving.adapter_trees import AdapterTrees
from tests.serving.adapters.small_adapters import SCALE, matrices
from tests.serving.small_llm import CONFIG

A = "model.layers.{layer}.self_attn.q_proj.lora_A"
B = "model.layers.{layer}.self_attn.q_proj.lora_B"
OWN = ParamsMapping(
    {A: ParamSource("blocks.{layer}.q.down", (1, 0)), B: ParamSource("blocks.{layer}.q.up", (1, 0))}
)
LAYERS = range(CONFIG.num_hidden_layers)


def queries(seed, rank=4):
    return [*matrices(seed, rank, names=["q_proj"]).values()]


def own_tree(seed, rank=4, kind=jnp.asarray):
    """Matrices as `[in, r]` and `[r, out]`, with invented names, and one leaf more."""
    blocks = [{"q": {"down": kind(m.a.T), "up": kind(m.b.T)}} for m in queries(seed, rank)]
    return {"blocks": blocks, "steps": np.int32(3)}


def stacked_tree(seed, rank=4, axis=1):
    found = queries(seed, rank)
    stack = {"down": [m.a.T for m in found], "up": [m.b.T for m in found]}
    return {"blocks": {"q": {name: jnp.stack(each, axis) for name, each in stack.items()}}}


def wanted(seed, rank=4):
    found = matrices(seed, rank, names=["q_proj"])
    return AdapterShape(CONFIG, np.dtype(np.float32), 4).adapter("wanted", None, found)


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize(
    ("mapping", "tree"),
    [
        (OWN, own_tree),
        (OWN, lambda *args: own_tree(*args, kind=np.asarray)),
        (OWN.stacked(1), stacked_tree),
    ],
    ids=["separate", "on the host", "stacked"],
)
def test_invented_names_give_the_same_adapter(mapping, tree, rank):
    trees = AdapterTrees(AdapterShape(CONFIG, np.dtype(np.float32), 4))
    for seed in range(2):
        adapter = trees.adapter("a", tree(seed, rank), SCALE, mapping)
        jax.tree.map(np.testing.assert_array_equal, adapter.matrices, wanted(seed, rank).matrices)


def test_heads_are_merged_and_parts_are_cut():
    found = queries(0)
    heads = {"down": [m.a for m in found], "up": [m.b.reshape(8, -1, 4) for m in found]}
    tree = {"q": {str(i): {name: each[i] for name, each in heads.items()} for i in LAYERS}}
    for i in LAYERS:
        tree["q"][str(i)]["down"] = np.concatenate([found[i].a, np.zeros_like(found[i].a)])
    mapping = ParamsMapping(
        {
            A: ParamSource("q.{layer}.down", part=(0, 4)),
            B: ParamSource("q.{layer}.up", reshape=True),
        }
    )
    made = mapped_adapter(leaves_by_path(tree), mapping, CONFIG)
    for i, each in enumerate(found):
        np.testing.assert_array_equal(made[A.format(layer=i)], each.a)
        np.testing.assert_array_equal(made[B.format(layer=i)], each.b)


def mapping_with(path, source):
    return ParamsMapping({**dict(OWN.sources), path: source})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (mapping_with("model.embed_tokens", "blocks.0.q.up"), "'model.embed_tokens', which is no"),
        (mapping_with(A, "blocks.{layer}.q.down"), r"\(32, 4\), becomes \(32, 4\), not"),
        (mapping_with(A, "blocks.{layer}.q.left"), r"blocks.0.q.left, not in params; the nearest"),
        (mapping_with(B + ".weight", "blocks.{layer}.q.up"), "q_proj.lora_B twice"),
        (ParamsMapping(OWN.sources[:1]), "layers.0.self_attn.q_proj has no matrix B"),
        (OWN.stacked(), "takes .* from blocks.q.down, not in params"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(mapping, message):
    trees = AdapterTrees(AdapterShape(CONFIG, np.dtype(np.float32), 4))
    with pytest.raises(ValueError, match=message) as error:
        trees.adapter("a", own_tree(0), SCALE, mapping)
    assert "\n" not in str(error.value)


def test_quantized_matrices_are_refused():
    leaves = leaves_by_path(own_tree(0))
    name = "blocks.0.q.down"
    leaves[name] = QuantizedLeaf(leaves[name].astype(jnp.int8), jnp.ones((1, 4)))
    with pytest.raises(ValueError, match=rf"params\[{name}\] is quantized; give an adapter's"):
        mapped_adapter(leaves, OWN, CONFIG)


def test_deleted_arrays_are_named():
    tree = own_tree(0)
    tree["blocks"][1]["q"]["up"].delete()
    with pytest.raises(ValueError, match=r"blocks.1.q.up was deleted, or donated"):
        mapped_adapter(leaves_by_path(tree), OWN, CONFIG)
