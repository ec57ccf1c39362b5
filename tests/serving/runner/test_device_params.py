import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.serving.runner.device_params import check_like, describe_params, place_params
from tests.serving.runner.tiny_runner import CONFIG, tiny_params


def _describe(devices=1, params=None):
    return describe_params(params or tiny_params(), CONFIG, make_mesh(devices), ShardingRules())


def _changed(path, value):
    tree = jax.tree.map(lambda leaf: leaf, tiny_params())
    *parents, last = path.split(".")
    node = tree
    for key in parents:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return tree


def test_arrays_in_place_are_used_as_they_are():
    placed = place_params(tiny_params(), _describe())
    pairs = zip(jax.tree.leaves(placed), jax.tree.leaves(tiny_params()), strict=True)
    assert all(mine is theirs for mine, theirs in pairs)


def test_other_arrays_are_put_where_the_steps_want_them():
    host = jax.tree.map(np.asarray, tiny_params())
    wanted = _describe(devices=2)
    placed = place_params(host, wanted)
    check_like(placed, wanted, placed=True)
    assert len(placed["model"]["embed_tokens"].sharding.device_set) == 2
    again = place_params(placed, wanted)
    assert again["model"]["norm"] is placed["model"]["norm"]


@pytest.mark.parametrize(
    ("path", "value", "cause"),
    [
        ("model.layers.1.mlp.up_proj", None, r"params lack model\.layers\.1\.mlp\.up_proj"),
        (
            "model.layers.0.self_attn.q_norm",
            jnp.ones(3),
            r"self_attn\.q_norm\] must have shape \(16,\)",
        ),
        (
            "model.norm",
            jnp.ones(32, jnp.bfloat16),
            r"\[model\.norm\] must be float32, got bfloat16",
        ),
        ("model.extra", jnp.ones(1), r"params have model\.extra"),
    ],
)
def test_the_first_leaf_that_differs_is_named(path, value, cause):
    with pytest.raises(ValueError, match=cause):
        check_like(_changed(path, value), _describe())


def test_a_leaf_that_is_no_array_is_a_type_error():
    with pytest.raises(TypeError, match=r"model\.norm.*must be an array, got str"):
        check_like(_changed("model.norm", "x"), _describe())


def test_a_leaf_that_was_donated_is_named_before_a_step_reads_it():
    gone = jnp.ones(32)
    gone.delete()
    with pytest.raises(ValueError, match=r"params\[model\.norm\] was deleted, or donated"):
        check_like(_changed("model.norm", gone), _describe())


def test_another_sharding_is_refused_where_it_matters():
    with pytest.raises(ValueError, match=r"must be sharded as .*tensor"):
        check_like(tiny_params(), _describe(devices=2), placed=True)
    with pytest.raises(ValueError, match="host memory"):
        check_like(jax.tree.map(np.asarray, tiny_params()), _describe(), placed=True)


def test_params_without_a_final_norm_are_refused():
    with pytest.raises(ValueError, match=r"params lack model\.norm"):
        _describe(params={"model": {}})
    with pytest.raises(ValueError, match="must be floating-point, got int32"):
        _describe(params={"model": {"norm": jnp.ones(2, jnp.int32)}})
