"""Tokens of texts over experts, counted as a router says, and drawn."""

from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.evaluation import Model, expert_use
from jaxinfer.evaluation.heat_map import heat_map
from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.kernels.experts.xla import route
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.model.experts import Experts
from jaxinfer.model.forward import residual_stream
from tests.model import tiny

X, K = 6, 2
CONFIG = tiny.config(
    model_type="qwen3_moe", num_hidden_layers=3, experts=Experts(X, K, 16, dense_layers=(1,))
)
_SVG = "{http://www.w3.org/2000/svg}"


def by_hand(params, text):
    """The experts of each token of layer 0, from the stream that its experts read.

    What enters layer 1 is that stream and what the experts add; without experts nothing is added.
    """
    layers = dict(params["model"]["layers"])
    mlp = layers["0"]["mlp"]
    silent = mlp["experts"] | {"down_proj": jnp.zeros_like(mlp["experts"]["down_proj"])}
    layers["0"] = layers["0"] | {"mlp": mlp | {"experts": silent}}
    changed = {"model": params["model"] | {"layers": layers}}
    _, seen = residual_stream(changed, CONFIG, jnp.asarray(text), watched=[1])
    norm = layers["0"]["post_attention_layernorm"]
    hidden = rms_norm(seen[1], norm, CONFIG.rms_norm_eps)
    chosen, _ = route(hidden, mlp["gate"], K, normalize=True)
    return np.bincount(np.asarray(chosen).ravel(), minlength=X)


@pytest.mark.slow
def test_every_token_counts_in_each_layer_and_padding_nowhere():
    params, told = tiny.params(CONFIG), []
    texts = [tiny.token_ids(CONFIG, length, seed=length).tolist() for length in (5, 19, 16)]
    found = expert_use(Model(CONFIG, params), texts, lambda: told.append(1))
    assert (found.layers, found.steps, len(told)) == ((0, 2), 3, 3)
    assert found.load.sum(axis=1).tolist() == [K * 40] * 2
    loads = [by_hand(params, text) for text in texts]
    np.testing.assert_array_equal(found.load[0], np.sum(loads, axis=0))
    assert found.num_distinct[0] == sum(np.count_nonzero(load) for load in loads)


def test_a_model_without_experts_is_refused():
    dense = tiny.config()
    with pytest.raises(ValueError, match="a qwen3 model without experts"):
        expert_use(Model(dense, tiny.params(dense)), [[1, 2]])


def test_ids_outside_of_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"texts\[1\] has ids outside of"):
        expert_use(Model(CONFIG, {}), [[1], [CONFIG.vocab_size]])


@pytest.mark.parametrize("num_experts", [4, 128])
@pytest.mark.parametrize("layers", [(0,), tuple(range(1, 95))])
def test_a_heat_map_has_a_cell_for_each_expert_of_each_layer(layers, num_experts):
    load = np.random.default_rng(0).integers(1, 9, (len(layers), num_experts))
    load[-1, -1] = 10 * num_experts
    use = ExpertStatistics(layers, load, 1, np.zeros(len(layers)))
    root = ElementTree.fromstring(heat_map(use, "a <b>"))
    texts = [each.text for each in root.iter(f"{_SVG}text")]
    assert {"a <b>", "layer", "expert", str(layers[0])} <= {*texts}
    cells = [each for each in root.iter(f"{_SVG}rect") if len(each)]
    assert len(cells) == load.size
    places = {(each.get("x"), each.get("y")) for each in cells}
    assert len(places) == load.size
    assert cells[-1].get("fill-opacity") == "1.000"
    ratio = load[-1, -1] / load[-1].mean()
    name = f"layer {layers[-1]}, expert {num_experts - 1}: {ratio:.2f}"
    assert cells[-1][0].text == name
    width, height = (int(root.get(name)) for name in ("width", "height"))
    for each in root.iter(f"{_SVG}rect"):
        assert int(each.get("x", 0)) + int(each.get("width")) <= width
        assert int(each.get("y", 0)) + int(each.get("height")) <= height


def test_layers_without_a_token_are_drawn_pale():
    use = ExpertStatistics((0,), np.zeros((1, 4), np.int64), 0, np.zeros(1))
    root = ElementTree.fromstring(heat_map(use, "empty"))
    cells = [each for each in root.iter(f"{_SVG}rect") if len(each)]
    assert {each.get("fill-opacity") for each in cells} == {"0.000"}
