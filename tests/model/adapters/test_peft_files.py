"""PEFT's directories: scales by pattern, and what is refused, by key."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.adapters.matrices import Matrices, Target
from jaxinfer.model.adapters.names import paired
from jaxinfer.model.adapters.peft_files import read_peft
from jaxinfer.model.adapters.shape import AdapterShape
from jaxinfer.serving.adapter_trees import of_tree
from jaxinfer.serving.compile.compilation import CompilationCounter
from tests.serving.adapters.small_adapters import matrices, save_peft, tree
from tests.serving.small_llm import CONFIG

SHAPE = AdapterShape(CONFIG, np.float32, 8)


def test_matrices_and_scales_are_those_of_the_files(tmp_path):
    wanted = matrices(0)
    found = read_peft(tmp_path) if save_peft(tmp_path, tree(wanted), lora_alpha=6) else {}
    assert found.keys() == wanted.keys()
    for target, each in found.items():
        np.testing.assert_array_equal(each.a, wanted[target].a)
        np.testing.assert_array_equal(each.b, wanted[target].b)
        assert each.scale == 6 / 4


def test_patterns_of_rank_and_alpha_are_honoured_as_peft_does(tmp_path):
    wanted = matrices(0, names=("q_proj", "k_proj")) | matrices(1, 2, names=("v_proj", "up_proj"))
    ranks = {"v_proj": 2, r".*\.mlp\.up_proj": 2}
    alphas = {"layers.1.self_attn.q_proj": 12, "v_proj": 3}
    save_peft(tmp_path, tree(wanted), rank_pattern=ranks, alpha_pattern=alphas, use_rslora=False)
    scales = {str(target): each.scale for target, each in read_peft(tmp_path).items()}
    assert scales["layers.0.self_attn.q_proj"] == 2 / 4
    assert scales["layers.1.self_attn.q_proj"] == 12 / 4
    assert scales["layers.0.self_attn.v_proj"] == 3 / 2
    assert scales["layers.0.mlp.up_proj"] == 2 / 2
    save_peft(tmp_path, tree(wanted), rank_pattern=ranks, alpha_pattern=alphas, use_rslora=True)
    scales = {str(target): each.scale for target, each in read_peft(tmp_path).items()}
    assert scales["layers.1.self_attn.q_proj"] == 12 / math.sqrt(4)
    assert scales["layers.0.self_attn.v_proj"] == 3 / math.sqrt(2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"target_parameters": ["w"]}, "target_parameters is"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only LORA"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"r": "8"}, "r must be a number above 0"),
        ({"lora_alpha": None}, "lora_alpha must be a number above 0"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern must be an object of numbers"),
        ({"r": 8}, "layers.0.self_attn.q_proj has rank 4, and adapter_config.json says 8"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(tmp_path, config, message):
    save_peft(tmp_path, tree(matrices(0)), **config)
    with pytest.raises(ModelLoadError, match=message) as error:
        read_peft(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight",
    ],
)
def test_tensors_that_are_no_matrices_of_projections_are_refused_by_name(tmp_path, name):
    save_peft(tmp_path, tree(matrices(0)) | {name: np.zeros((4, 4), np.float32)})
    with pytest.raises(ModelLoadError, match=re.escape(name)):
        read_peft(tmp_path)


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"has no adapter_config\.json"):
        read_peft(tmp_path)
    with pytest.raises(ModelLoadError, match=r"give the one .* with adapter_config\.json and"):
        read_peft(tmp_path / "gone")
    save_peft(tmp_path, tree(matrices(0)))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match=r"adapter_model\.bin alone"):
        read_peft(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelLoadError, match=r"adapter_model\.safetensors"):
        read_peft(tmp_path)


def test_a_matrix_without_its_other_is_named():
    with pytest.raises(ValueError, match=r"layers\.3\.mlp\.up_proj has no matrix B"):
        paired(["layers.3.mlp.up_proj.lora_A.weight"])


def test_names_of_tunix_and_peft_mean_the_same():
    names = ["layers.0.attn.q_proj.w_lora_a", "layers.0.attn.q_proj.w_lora_b"]
    assert paired(names) == {Target(0, "self_attn", "q_proj"): tuple(names)}
    names = ["layers.0.mlp.up_proj.kernel_lora_a", "layers.0.mlp.up_proj.kernel_lora_b"]
    assert paired(names) == {Target(0, "mlp", "up_proj"): tuple(names)}
    names = [f"model.layers.0.mlp.up_proj.lora_{each}.default" for each in "AB"]
    assert paired(names) == {Target(0, "mlp", "up_proj"): tuple(names)}


def test_ranks_are_padded_with_zeros_and_scaled():
    target = Target(1, "self_attn", "o_proj")
    (own,) = [each for at, each in matrices(0).items() if at == target]
    stacked = SHAPE.adapter("a", None, {target: own}).matrices
    assert all(len(leaf) == CONFIG.num_hidden_layers for leaf in jax.tree.leaves(stacked))
    padded = {name: leaf[1] for name, leaf in stacked["self_attn"]["o_proj"].items()}
    np.testing.assert_array_equal(padded["a"][:4], own.a)
    np.testing.assert_array_equal(padded["b"][:, :4], own.b * np.float32(own.scale))
    assert not padded["a"][4:].any()
    assert not padded["b"][:, 4:].any()
    assert sum(leaf.any() for leaf in jax.tree.leaves(stacked)) == 2
    assert not any(leaf[0].any() for leaf in jax.tree.leaves(stacked))


@pytest.mark.parametrize("transposed", [False, True])
def test_arrays_on_a_device_stay_there_and_give_the_same(transposed):
    on_host = SHAPE.adapter("a", None, matrices(0))
    found = {target: _on_device(each, transposed) for target, each in matrices(0).items()}
    on_device = SHAPE.adapter("a", None, found)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(on_device.matrices))
    jax.tree.map(np.testing.assert_array_equal, on_device.matrices, on_host.matrices)


def test_an_array_that_was_deleted_is_named():
    leaves = {name: jnp.array(leaf) for name, leaf in tree(matrices(0)).items()}
    gone = next(reversed(leaves))
    leaves[gone].delete()
    with pytest.raises(ValueError, match=rf"{gone.removesuffix('.weight')} was deleted"):
        of_tree(leaves, 1.0)


def test_another_scale_compiles_nothing():
    found = {target: _on_device(each, False) for target, each in matrices(0).items()}
    SHAPE.adapter("a", None, found)
    counter = CompilationCounter()
    try:
        scaled = {target: each._replace(scale=0.25) for target, each in found.items()}
        SHAPE.adapter("a", None, scaled)
        assert counter.count == 0
    finally:
        counter.close()


def _on_device(own, transposed):
    a, b = (jnp.array(leaf.T if transposed else leaf) for leaf in (own.a, own.b))
    return Matrices(a, b, own.scale, (transposed, transposed))


def test_a_device_array_that_is_not_finite_is_refused_by_projection():
    found = {target: _on_device(each, False) for target, each in matrices(0).items()}
    bad = next(reversed(found))
    found[bad] = found[bad]._replace(b=found[bad].b.at[0, 0].set(jnp.nan))
    with pytest.raises(ValueError, match=f"{bad} holds NaN or infinity in float32"):
        SHAPE.adapter("a", None, found)


@pytest.mark.parametrize(
    ("target", "a", "b", "message"),
    [
        ((9, "mlp", "up_proj"), (4, 32), (64, 4), "another model's"),
        ((0, "mlp", "qkv_proj"), (4, 32), (64, 4), "can't be adapted; what can: self_attn.q_proj"),
        ((0, "mlp", "up_proj"), (4, 65), (64, 4), "65 inputs to 64 outputs"),
        ((0, "mlp", "up_proj"), (4, 32), (64, 3), "are no pair"),
        ((0, "mlp", "up_proj"), (4,), (64, 4), "are no pair"),
        ((0, "mlp", "up_proj"), (0, 32), (64, 0), "have rank 0; leave them out"),
    ],
)
def test_another_models_matrices_are_refused_by_projection(target, a, b, message):
    found = {Target(*target): Matrices(np.zeros(a, np.float32), np.zeros(b, np.float32), 1.0)}
    with pytest.raises(ValueError, match=message):
        SHAPE.adapter("a", None, found)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.complex64])
def test_matrices_that_are_no_floats_are_refused(dtype):
    own = Matrices(np.zeros((4, 32), np.float32), np.zeros((64, 4), dtype), 1.0)
    with pytest.raises(ValueError, match=f"up_proj: lora_B has dtype {np.dtype(dtype)}; give"):
        SHAPE.adapter("a", None, {Target(0, "mlp", "up_proj"): own})


@pytest.mark.parametrize(
    ("dtype", "scale", "value"),
    [(np.float32, 1.0, np.nan), (np.float32, np.inf, 1.0), (np.float16, 1e4, 100.0)],
)
def test_what_is_not_finite_in_the_engines_dtype_is_refused(dtype, scale, value):
    target = Target(0, "mlp", "up_proj")
    own = Matrices(np.ones((4, 32), np.float32), np.full((64, 4), value, np.float32), scale)
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.up_proj holds NaN or infinity in float"):
        AdapterShape(CONFIG, dtype, 8).adapter("a", None, {target: own})
