"""Weights that a trainer holds as qwix's `QArray` are taken as they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from flax import nnx

from jaxinfer import ParamsMapping, abstract_params, make_mesh
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.quantized.params import dequantize_weight
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.sources import ParamSource
from jaxinfer.rollouts.taking import _tiles
from jaxinfer.rollouts.trees import leaves_by_path
from tests.model import tiny
from tests.rollouts import trainers
from tests.rollouts.test_update_params import answers
from tests.serving.small_llm import CONFIG, small_llm

PLAIN = trainers.other_params()
FORMS = {
    "int8": (Quantization("int8"), jnp.int8, {}),
    "fp8": (Quantization("fp8", inputs="token"), jnp.float8_e4m3fn, {}),
    "int4": (Quantization("int4", (1, 16)), jnp.int4, {"tiled_axes": {1: 16}}),
}


def _quantized(tree, dtype, **options):
    """The tree with projections as `QArray`s, ``[out, in]``."""

    def convert(path, leaf):
        if not path.endswith("_proj"):
            return leaf
        return qwix.quantize(leaf, dtype, channelwise_axes=(0,), **options)

    return unflatten({path: convert(path, leaf) for path, leaf in flatten(tree)})


def _dequantized(tree):
    def convert(leaf):
        return qwix.dequantize(leaf) if isinstance(leaf, qwix.QArray) else leaf

    return jax.tree.map(convert, tree, is_leaf=lambda leaf: isinstance(leaf, qwix.QArray))


@pytest.mark.parametrize(
    ("name", "num_devices"),
    [
        ("int8", 2),
        ("fp8", 1),
        ("int4", 1),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in [("int8", 1), ("fp8", 2), ("int4", 2)]
        ),
    ],
)
@pytest.mark.slow
def test_an_engine_of_the_same_form_takes_codes_and_scales(name, num_devices):
    form, dtype, options = FORMS[name]
    tree = _quantized(PLAIN, dtype, **options)
    config = dataclasses.replace(CONFIG, quantization=form)
    with small_llm(config=config, mesh=make_mesh(num_devices)) as llm:
        llm.update_params(tree)
        held = llm._loaded.replicas[0].runner.resident.params
        expected = _dequantized(tree)
        for path, leaf in flatten(expected):
            node = held
            for part in path.split("."):
                node = node[part]
            found = dequantize_weight(node, "float32") if isinstance(node, dict) else node
            np.testing.assert_array_equal(found, leaf, err_msg=path)
        updated = answers(llm)
    if form.inputs is None and num_devices == 1:
        with small_llm(params=expected) as llm:
            assert answers(llm) == updated


def test_an_engine_starts_from_them_and_a_plain_one_multiplies_them_out():
    form, dtype, options = FORMS["int8"]
    tree = _quantized(PLAIN, dtype, **options)
    with small_llm(params=_dequantized(tree)) as llm:
        expected = answers(llm)
    with small_llm(params=tree) as llm:
        assert answers(llm) == expected
    with small_llm(params=tree, config=dataclasses.replace(CONFIG, quantization=form)) as llm:
        assert answers(llm) == expected


def _tunix():
    """Heads as dimensions of their own, ``[in, ..., out]``, of which outputs have scales."""
    tree = trainers.tunix(PLAIN)
    for layer in tree["layers"].values():
        for name, axes in (("q_proj", (1, 2)), ("k_proj", (1, 2)), ("v_proj", (1, 2))):
            array = layer["attn"][name]["w"]
            layer["attn"][name]["w"] = qwix.quantize(array, jnp.int8, channelwise_axes=axes)
        output = layer["attn"]["o_proj"]
        output["w"] = qwix.quantize(output["w"], jnp.int8, channelwise_axes=(2,))
        for kernel in layer["mlp"].values():
            kernel["kernel"] = qwix.quantize(kernel["kernel"], jnp.int8, channelwise_axes=(1,))
    return tree, ParamsMapping.tunix_qwen3(CONFIG)


def _stacked():
    layers = [PLAIN["model"]["layers"][str(i)] for i in range(CONFIG.num_hidden_layers)]
    stacked = jax.tree.map(lambda *own: jnp.stack(own), *layers)
    stacked = unflatten(
        {
            path: qwix.quantize(leaf, jnp.int8, channelwise_axes=(0, 1))
            if path.endswith("_proj")
            else leaf
            for path, leaf in flatten(stacked)
        }
    )
    tree = PLAIN | {"model": PLAIN["model"] | {"layers": stacked}}
    return tree, ParamsMapping.hugging_face(CONFIG).stacked()


@pytest.mark.parametrize("held", [_tunix, _stacked])
def test_a_mapping_lays_codes_and_scales_as_the_engine_does(held):
    (tree, mapping), form = held(), FORMS["int8"][0]
    config = dataclasses.replace(CONFIG, quantization=form)
    wanted = abstract_params(CONFIG, "float32", make_mesh(1))
    plain = MappedParams(_dequantized(tree), mapping).write(wanted, None)
    multiplied = MappedParams(tree, mapping).write(wanted, None)
    jax.tree.map(np.testing.assert_array_equal, multiplied, plain)
    quantized = MappedParams(tree, mapping).write(
        abstract_params(config, "float32", make_mesh(1)), None
    )
    assert quantized["model"]["layers"]["1"]["mlp"]["up_proj"]["weight"].dtype == jnp.int8
    again = tiny.plain_params(quantized, "float32")
    jax.tree.map(np.testing.assert_array_equal, again, plain)


def test_zero_points_count_where_they_are_multiplied_out():
    path = ("model", "layers", "0", "mlp", "up_proj")
    weight = PLAIN[path[0]][path[1]][path[2]][path[3]][path[4]]
    array = qwix.quantize(weight, jnp.int8, channelwise_axes=(0,), calibration_method="minmax")
    assert array.zero_point is not None
    leaves = dict(flatten(PLAIN)) | {".".join(path): array}
    tree = unflatten(leaves)
    wanted, mapping = abstract_params(CONFIG, "float32"), ParamsMapping.hugging_face(CONFIG)
    found = dict(flatten(MappedParams(tree, mapping).write(wanted, None)))
    np.testing.assert_allclose(found[".".join(path)], qwix.dequantize(array), rtol=1e-5, atol=1e-6)


def _refusal(tree, form, mapping=None):
    config = dataclasses.replace(CONFIG, quantization=form)
    writer = MappedParams(tree, mapping or ParamsMapping.hugging_face(CONFIG))
    with pytest.raises(ValueError, match="quantized") as caught:
        writer.check(abstract_params(config, "float32"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_form_is_refused_by_name():
    tree = _quantized(PLAIN, jnp.int8)
    message = _refusal(tree, FORMS["fp8"][0])
    assert "down_proj] is quantized, int8 with scales (32, 1), and the engine has" in message
    assert "down_proj as fp8 with scales (32,); give it the same form, or plain" in message
    groups = f"int8 with scales (32, {CONFIG.intermediate_size // 8})"
    assert groups in _refusal(tree, Quantization("int8", (1, 8)))
    zeros = _quantized(PLAIN, jnp.int8, calibration_method="minmax")
    assert "and zero points" in _refusal(zeros, FORMS["int8"][0])
    whole = _quantized(PLAIN, jnp.int8)
    whole["model"]["layers"]["0"]["mlp"]["up_proj"] = qwix.quantize(
        PLAIN["model"]["layers"]["0"]["mlp"]["up_proj"], jnp.int8
    )
    assert "up_proj] is quantized, int8 with scales (1, 1)" in _refusal(whole, FORMS["int8"][0])
    scaled = ParamsMapping(
        {
            path: ParamSource(path, scale=2.0) if path.endswith("up_proj") else source
            for path, source in ParamsMapping.hugging_face(CONFIG).sources
        }
    )
    assert "the mapping can't split, cut or scale it" in _refusal(tree, FORMS["int8"][0], scaled)


def test_qwixs_array_in_a_variable_of_flax_is_found():
    array = qwix.quantize(jnp.ones((8, 4)), jnp.int8, channelwise_axes=(0,))
    state = nnx.State({"a": {"q_proj": nnx.Param(array)}, "b": {"kernel": array}})
    found = leaves_by_path(state)
    assert sorted(found) == ["a.q_proj", "b.kernel"]
    assert all(isinstance(leaf, QuantizedLeaf) and leaf.shape == (8, 4) for leaf in found.values())


@pytest.mark.parametrize(
    ("codes", "scale", "matrix", "tiles"),
    [
        ((6, 8), (6, 1), (6, 8), (6, 1)),
        ((6, 8), (6, 2), (6, 8), (6, 2)),
        ((6, 8), (2, 4), (6, 8), (2, 4)),
        ((2, 3, 8), (2, 3, 1), (6, 8), (6, 1)),
        ((2, 3, 8), (2, 1, 1), (6, 8), (2, 1)),
        ((2, 3, 8), (1, 3, 1), (6, 8), None),
        ((8, 2, 3), (8, 1, 1), (8, 6), (8, 1)),
        ((8, 2, 3), (1, 2, 3), (8, 6), (1, 6)),
        ((8, 6), (8,), (8, 6), None),
        ((4, 12), (4, 1), (8, 6), None),
    ],
)
def test_tiles_of_merged_dimensions_are_of_elements_in_turn(codes, scale, matrix, tiles):
    assert _tiles(codes, scale, matrix) == tiles
    if tiles is None or len(codes) != len(scale):
        return
    ids = np.arange(np.prod(scale)).reshape(scale)
    for axis, (size, count) in enumerate(zip(codes, scale, strict=True)):
        ids = ids.repeat(size // count, axis=axis)
    expected = np.arange(np.prod(tiles)).reshape(tiles)
    for axis in (0, 1):
        expected = expected.repeat(matrix[axis] // tiles[axis], axis=axis)
    np.testing.assert_array_equal(ids.reshape(matrix), expected)
