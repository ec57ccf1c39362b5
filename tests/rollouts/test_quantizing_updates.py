"""A plain tree updates an engine of int8 weights: as a directory that was quantized alike."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import ParamsMapping, ShardingRules, abstract_params, make_mesh, save_params
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.rollouts import conversion
from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.trees import leaves_by_path, nested
from tests.hlo import aliases
from tests.rollouts import trainers
from tests.rollouts.test_update_params import answers, pointers, used
from tests.serving.small_llm import CONFIG, small_llm, small_params

pytestmark = pytest.mark.slow("alone")

FORMAT = Quantization("int8")
INT8 = dataclasses.replace(CONFIG, quantization=FORMAT)
OTHER = trainers.other_params()
HELD = {
    "hugging_face": lambda params: params,
    "nnx_linear": trainers.flax_layers,
    "tunix_qwen3": trainers.tunix,
}


def _quantized(tree):
    """Integers and scales of the projections, in NumPy, without the package's own functions."""

    def part(name, node):
        if isinstance(node, dict):
            return {key: part(key, child) for key, child in node.items()}
        weight = np.asarray(node)
        if not name.endswith("_proj"):
            return weight
        scale = np.abs(weight).max(axis=1) * np.float32(1 / 127)
        return {"weight": np.rint(weight / scale[:, None]).astype(np.int8), "scale": scale}

    return part("", tree)


def _held(llm, replica=0):
    return llm._loaded.replicas[replica].runner.resident.params


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The arrays and answers of an engine that loaded a directory of the quantized tree."""
    directory = tmp_path_factory.mktemp("int8")
    save_params(_quantized(OTHER), INT8, directory)
    settings = {"params": None, "config": None, "skip_tokenizer_init": True}
    with small_llm(model=str(directory), **settings) as llm:
        return jax.tree.map(np.asarray, _held(llm)), answers(llm)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("name", [None, *HELD])
def test_a_plain_tree_is_quantized_in_the_place_of_the_old_integers(expected, name, num_devices):
    arrays, tokens = expected
    mapping = None if name is None else getattr(ParamsMapping, name)(INT8)
    given = HELD[name or "hugging_face"](OTHER)
    mesh = make_mesh(num_devices)
    with small_llm(params=small_params(), config=INT8, mesh=mesh) as llm:
        assert answers(llm) != tokens
        before = pointers(used(llm))
        llm.update_params(given, mapping)
        jax.tree.map(np.testing.assert_array_equal, _held(llm), arrays)
        assert answers(llm) == tokens
        assert pointers(used(llm)) == before
        count = llm.num_compilations
        llm.update_params(given, mapping)
        assert llm.num_compilations == count
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(OTHER))


def test_a_plain_tree_starts_an_engine_of_integers(expected):
    with small_llm(params=OTHER, config=INT8) as llm:
        jax.tree.map(np.testing.assert_array_equal, _held(llm), expected[0])
        assert answers(llm) == expected[1]


@pytest.mark.slow
def test_integers_of_the_caller_are_used_as_they_are(expected):
    tree = jax.tree.map(jnp.asarray, expected[0])
    with small_llm(params=small_params(), config=INT8) as llm:
        llm.update_params(tree)
        assert pointers(used(llm)) == pointers(jax.tree.leaves(tree))
        assert answers(llm) == expected[1]
        up_proj = tree["model"]["layers"]["0"]["mlp"]["up_proj"]
        up_proj["scale"] = up_proj["scale"].astype(jnp.bfloat16)
        with pytest.raises(ValueError, match=r"up_proj\.scale\] must be float32, got bfloat16"):
            llm.update_params(tree)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_are_quantized_from_the_trainers_own_dtype(dtype):
    tree = jax.tree.map(lambda leaf: leaf.astype(dtype), OTHER)
    wanted = abstract_params(INT8, "bfloat16", make_mesh(1))
    written = MappedParams(tree, ParamsMapping.hugging_face(INT8)).write(wanted, None)
    expected = quantize_params(tree, FORMAT)
    for (path, leaf), (_, like) in zip(
        leaves_by_path(written).items(), leaves_by_path(expected).items(), strict=True
    ):
        is_integer = path.endswith((".weight", ".scale"))
        np.testing.assert_array_equal(leaf, like if is_integer else like.astype("bfloat16"))


def test_replicas_quantize_each_their_own(expected):
    with small_llm(params=small_params(), config=INT8, data_parallel_size=2) as llm:
        llm.update_params(OTHER)
        for replica in (0, 1):
            jax.tree.map(np.testing.assert_array_equal, _held(llm, replica), expected[0])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mlp.up_proj": None}, r"takes model\.layers\.0\.mlp\.up_proj from .*, not in params"),
        ({"mlp.up_proj": np.ones((3, 32), np.float32)}, r"up_proj\], \(3, 32\), becomes"),
    ],
)
def test_a_tree_that_does_not_fit_is_named_and_changes_nothing(change, named, expected):
    leaves = leaves_by_path(OTHER)
    for name, value in change.items():
        leaves[f"model.layers.0.{name}"] = value
    tree = nested({path: leaf for path, leaf in leaves.items() if leaf is not None})
    with small_llm(params=OTHER, config=INT8) as llm:
        with pytest.raises(ValueError, match=named):
            llm.update_params(tree)
        assert answers(llm) == expected[1]


@pytest.mark.parametrize("name", ["hugging_face", "nnx_linear"])
def test_no_second_copy_of_the_tree_is_made(name):
    """The program quantizes leaf by leaf, each into the memory of the old one."""
    wanted = abstract_params(INT8, jnp.float32, make_mesh(1))
    leaves, mapping = leaves_by_path(HELD[name](OTHER)), getattr(ParamsMapping, name)(INT8)
    assignments, targets = mapping.assignments(leaves, wanted), conversion.targets_of(wanted)
    program = conversion._program(assignments, targets)
    held = conversion._used(leaves, assignments, targets[0].sharding)
    compiled = program.lower(jax.tree.leaves(wanted), held).compile()
    count = len(jax.tree.leaves(wanted))
    assert aliases(compiled.as_text()) == {i: i for i in range(count)}
    temporary = compiled.memory_analysis().temp_size_in_bytes
    sizes = [leaf.nbytes for path, leaf in leaves_by_path(OTHER).items() if "embed" not in path]
    assert temporary < 1.1 * max(sizes) < sum(sizes) / 2


@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.slow
def test_layers_are_quantized_by_the_same_programs_at_a_start(is_stacked, monkeypatch):
    """One program for a whole model would be long to compile; host memory is copied once."""
    traced, copied = [], []
    quantize, put = conversion.quantize_weight, jax.device_put
    monkeypatch.setattr(
        conversion,
        "quantize_weight",
        lambda leaf, form: traced.append(leaf.shape) or quantize(leaf, form),
    )
    monkeypatch.setattr(jax, "device_put", lambda x, *to: copied.append(x) or put(x, *to))
    conversion._node_program.cache_clear()
    mapping = ParamsMapping.hugging_face(INT8)
    given: Any = OTHER
    if is_stacked:
        mapping = ParamsMapping.nnx_linear(INT8).stacked()
        given = trainers.with_stacked_layers(trainers.flax_layers(OTHER), 0)
    held = {path: np.asarray(leaf) for path, leaf in leaves_by_path(given).items()}
    made = MappedParams(held, mapping).make(INT8, jnp.float32, make_mesh(1), ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, quantize_params(OTHER, FORMAT))
    assert len(traced) == len(set(traced)) < 7
    assert INT8.num_hidden_layers > 1
    arrays = [leaf for leaf in copied if np.ndim(leaf)]
    assert len({id(leaf) for leaf in arrays}) == len(arrays) == len(held)
