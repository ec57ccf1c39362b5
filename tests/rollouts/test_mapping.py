"""A mapping makes the engine's parameters of a trainer's, or says in a line why it can't."""

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import ParamsMapping, ParamSource, ShardingRules, abstract_params
from jaxinfer.model.experts import Experts
from jaxinfer.rollouts.conversion import MappedParams
from tests.rollouts import trainers
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, ids, small_llm, small_params

WANTED = abstract_params(CONFIG, jnp.float32)
HELD = {
    "hugging_face": lambda params: params,
    "nnx_linear": trainers.flax_layers,
    "tunix_qwen3": trainers.tunix,
    "maxtext_qwen3": trainers.maxtext,
    "skyrl_qwen3": trainers.skyrl_qwen3,
}
LLAMA = dataclasses.replace(CONFIG, model_type="llama")
LLAMAS = {
    "llama3.1": (trainers.maxtext_llama, ParamsMapping.maxtext_llama(LLAMA)),
    "default": (
        functools.partial(trainers.maxtext_llama, pairs=False),
        ParamsMapping.maxtext_llama(LLAMA, rope_type="default"),
    ),
    "skyrl": (trainers.skyrl_llama, ParamsMapping.skyrl_llama(LLAMA)),
}
TUNIX = ParamsMapping.tunix_qwen3(CONFIG)


def changed(mapping, **changes):
    """The mapping with other sources; None takes one out, by the last name of its path."""
    sources = dict(mapping.sources)
    for name, source in changes.items():
        (path,) = [path for path in sources if path.split(".")[-1] == name]
        sources[path] = source
    kept = {path: source for path, source in sources.items() if source is not None}
    return ParamsMapping(kept, mapping.stacked_axis)


@pytest.fixture(scope="module")
def spread():
    return trainers.other_params()


def check(mapping, tree=None):
    MappedParams(trainers.tunix(small_params()) if tree is None else tree, mapping).check(WANTED)


def _fused(params):
    """Queries, keys and values in one array ``[in, heads, D]``, in the places of q_proj."""
    layers, dim = {}, CONFIG.head_dim
    for index, layer in params["model"]["layers"].items():
        attention = dict(layer["self_attn"])
        rows = [attention.pop(name) for name in ("q_proj", "k_proj", "v_proj")]
        qkv = np.concatenate(rows).reshape(-1, dim, CONFIG.hidden_size).transpose(2, 0, 1)
        layers[index] = layer | {"self_attn": attention | {"qkv": qkv}}
    return params | {"model": params["model"] | {"layers": layers}}


def _fused_mapping(ends):
    sources = dict(ParamsMapping.hugging_face(CONFIG).sources)
    starts = (0, *ends[:-1])
    for name, start, end in zip(("q_proj", "k_proj", "v_proj"), starts, ends, strict=True):
        path = f"model.layers.{{layer}}.self_attn.{name}"
        fused = "model.layers.{layer}.self_attn.qkv"
        sources[path] = ParamSource(fused, (1, 2, 0), (start, end), reshape=True)
    return ParamsMapping(sources)


def test_fused_projections_are_cut_into_the_engines():
    heads = CONFIG.num_attention_heads, CONFIG.num_key_value_heads
    ends = heads[0], heads[0] + heads[1], heads[0] + 2 * heads[1]
    held = _fused(small_params())
    made = MappedParams(held, _fused_mapping(ends)).make(CONFIG, None, None, ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, small_params())
    cause = r"\.qkv\], \(32, 12, 16\), can't become .*v_proj"
    with pytest.raises(ValueError, match=cause):
        check(_fused_mapping((*ends[:2], ends[2] + 1)), held)
    with pytest.raises(ValueError, match=r"becomes \(3, 16, 32\), not .*k_proj"):
        check(_fused_mapping((ends[0] - 1, *ends[1:])), held)


@pytest.mark.parametrize("name", HELD)
def test_a_ready_mapping_gives_the_engines_parameters(name):
    mapping = getattr(ParamsMapping, name)(CONFIG)
    held = HELD[name](small_params())
    made = MappedParams(held, mapping).make(CONFIG, None, None, ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, small_params())
    pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(held)}
    assert not pointers & {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(made)}


@pytest.mark.parametrize("name", LLAMAS)
def test_a_ready_mapping_gives_a_llamas_parameters(name):
    held, mapping = LLAMAS[name]
    wanted = trainers.llama(small_params())
    made = MappedParams(held(wanted), mapping).make(LLAMA, None, None, ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, wanted)


def test_an_engine_of_interleaved_arrays_answers_as_one_of_its_own(spread):
    with small_llm(params=spread) as llm:
        expected = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    held = trainers.skyrl_qwen3(spread)
    with small_llm(params=held, mapping=ParamsMapping.skyrl_qwen3(CONFIG)) as llm:
        assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
        llm.update_params(small_params())
        assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) != expected
        llm.update_params(held, ParamsMapping.skyrl_qwen3(CONFIG))
        assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (ParamSource("w", split=(32, 5)), r"params\[w\], \(32, 4\), can't become"),
        (ParamSource("w", part=(0, 2), part_axis=2), r"params\[w\], \(32, 4\), can't become"),
        (ParamSource("w", part=(1, 2), part_axis=1), r"becomes \(32, 1\), not model\.norm"),
    ],
)
def test_what_can_not_be_split_or_cut_is_one_clear_error(source, cause):
    held = trainers.tunix(small_params()) | {"w": np.ones((32, 4), np.float32)}
    with pytest.raises(ValueError, match=cause):
        check(changed(TUNIX, norm=source), held)


def test_parameters_take_the_engines_dtype():
    held = trainers.tunix(small_params())
    made = MappedParams(held, TUNIX).make(CONFIG, jnp.bfloat16, None, ShardingRules())
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype(jnp.bfloat16)}


def test_a_scale_is_multiplied():
    mapping = changed(TUNIX, norm=ParamSource("final_norm.w", scale=0.5))
    held = trainers.tunix(small_params())
    made = MappedParams(held, mapping).make(CONFIG, None, None, ShardingRules())
    np.testing.assert_array_equal(made["model"]["norm"], small_params()["model"]["norm"] * 0.5)


@pytest.mark.parametrize(
    ("mapping", "cause"),
    [
        (changed(TUNIX, norm=None), r"leaves model\.norm unset, which must be float32\[32\]"),
        (changed(TUNIX, norm="final_norm.v"), r"final_norm\.v, not in params; the nearest is fina"),
        (
            ParamsMapping([*TUNIX.sources, ("model.layers.1.mlp.up_proj", "final_norm.w")]),
            r"sets model\.layers\.1\.mlp\.up_proj twice, from layers\.1\.mlp",
        ),
        (
            ParamsMapping([*TUNIX.sources, ("model.nrm", "final_norm.w")]),
            r"sets model\.nrm, which this model lacks; the nearest is model\.norm",
        ),
        (
            changed(TUNIX, down_proj="layers.{layer}.mlp.down_proj.kernel"),
            r"down_proj\.kernel\], \(64, 32\), becomes \(64, 32\), not .*down_proj, \(32, 64\)",
        ),
        (
            changed(TUNIX, q_proj=ParamSource("layers.{layer}.attn.q_proj.w", reshape=True)),
            r"q_proj\.w\], \(32, 4, 16\), can't become|becomes",
        ),
        (
            changed(TUNIX, norm=ParamSource("final_norm.w", (1, 0))),
            r"final_norm\.w\], \(32,\), can't become model\.norm",
        ),
        (changed(TUNIX, q_norm="final_norm.w"), "give stacked_axis="),
    ],
)
def test_a_mapping_that_does_not_fit_is_one_clear_error(mapping, cause):
    with pytest.raises(ValueError, match=cause) as raised:
        check(mapping)
    assert "\n" not in str(raised.value)


def test_reshaping_merges_neighbours_only():
    mapping = changed(
        TUNIX, q_proj=ParamSource("layers.{layer}.attn.q_proj.w", (1, 0, 2), reshape=True)
    )
    with pytest.raises(ValueError, match=r"q_proj\.w\], \(32, 8, 16\), becomes \(8, 32, 16\), not"):
        check(mapping)


def test_a_description_differs_where_the_program_would():
    """Several processes compare it, lest they run different programs."""
    held = trainers.tunix(small_params())

    def describe(mapping=TUNIX, **leaves):
        return MappedParams(held | leaves, mapping).describe()

    assert describe() == describe()
    others = [
        describe(changed(TUNIX, norm=ParamSource("final_norm.w", scale=0.5))),
        describe(ParamsMapping(TUNIX.sources, stacked_axis=0)),
        describe(final_norm={"w": np.ones(31, np.float32)}),
        describe(final_norm={"w": jnp.ones(32, jnp.bfloat16)}),
        describe(final_norm={"w": np.ones(32, np.float32)}),
    ]
    for other in others:
        (name,) = [name for name in other if other[name] != describe()[name]]
        assert "norm" in name or name == "stacked_axis"


def test_a_source_is_a_path_or_a_param_source():
    with pytest.raises(TypeError, match=r"source of model\.norm must be a path or a ParamSource"):
        ParamsMapping({"model.norm": 3})


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"path": 3}, "path of a ParamSource must be a string, got 3"),
        ({"transpose": "10"}, "transpose must be a tuple of integers, got '10'"),
        ({"transpose": (1.0, 0)}, "transpose entry must be an integer, got 1.0"),
        ({"split": 4}, "split must be a tuple of integers, got 4"),
        (
            {"part": (0, 32, 2)},
            r"part must be the first index and .*, got \(0, 32, 2\)",
        ),
        ({"part_axis": None}, "part_axis must be an integer, got None"),
        ({"scale": "2"}, "scale must be a number, got '2'"),
        ({"scale": float("nan")}, "scale must be from .* got nan"),
    ],
)
def test_an_attribute_of_another_kind_is_named(fields, cause):
    with pytest.raises((TypeError, ValueError), match=cause):
        ParamSource(**{"path": "w", **fields})


def test_an_axis_of_stacked_layers_is_an_integer():
    with pytest.raises(TypeError, match="stacked_axis must be an integer, got '0'"):
        ParamsMapping(TUNIX.sources, stacked_axis=cast(Any, "0"))


def test_lists_are_taken_as_tuples():
    fields: dict[str, Any] = {"transpose": [0], "part": [0, 32], "split": [32]}
    lists = ParamSource("final_norm.w", **fields)
    tuples = ParamSource("final_norm.w", (0,), part=(0, 32), split=(32,))
    assert hash(lists) == hash(tuples)
    check(changed(TUNIX, norm=lists))


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64])
def test_arrays_of_other_than_floating_point_numbers_are_refused_by_name(dtype):
    held = trainers.tunix(small_params()) | {"final_norm": {"w": np.ones(32, dtype)}}
    with pytest.raises(TypeError, match=r"params\[final_norm\.w\] must hold floating-point numb"):
        check(TUNIX, held)


def test_a_donated_array_is_refused_by_name():
    gone = jnp.ones(32)
    gone.delete()
    held = trainers.tunix(small_params()) | {"final_norm": {"w": gone}}
    with pytest.raises(ValueError, match=r"final_norm\.w was deleted, or donated"):
        check(TUNIX, held)


def test_ready_mappings_are_equal_and_hashable():
    again = ParamsMapping.tunix_qwen3(CONFIG)
    assert again == TUNIX
    assert hash(again) == hash(TUNIX)


DENSE = [ParamsMapping.tunix_qwen3, ParamsMapping.maxtext_qwen3, ParamsMapping.skyrl_qwen3]


@pytest.mark.parametrize("make", DENSE)
def test_mappings_of_another_model_are_refused(make):
    with pytest.raises(ValueError, match="is for models with k_norm, and the engine's, a llama,"):
        make(LLAMA)
    biased = dataclasses.replace(CONFIG, attention_bias=True)
    with pytest.raises(ValueError, match=r"no source for the model's .*k_proj_bias; write a Par"):
        make(biased)


def test_another_rotation_is_refused():
    with pytest.raises(ValueError, match=r"or .default., got .yarn."):
        ParamsMapping.maxtext_llama(LLAMA, rope_type="yarn")


@pytest.mark.parametrize("make", DENSE)
def test_mappings_of_dense_trainers_refuse_experts(make):
    config = dataclasses.replace(CONFIG, model_type="qwen3_moe", experts=Experts(4, 2, 16))
    with pytest.raises(ValueError, match="for dense models"):
        make(config)
