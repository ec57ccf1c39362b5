"""`jaxinfer convert --merge`: merged weights are the engine's with the adapter, rounded once."""

import json

import jax
import numpy as np
import pytest

from jaxinfer import LLM, LoRARequest, SamplingParams
from jaxinfer.convert import main
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS
from jaxinfer.model.checkpoint.orbax_files import is_checkpoint
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import projection_shapes
from jaxinfer.testing import TINY_SETTINGS
from tests.model import small_models
from tests.serving.adapters.small_adapters import matrices, merged, save_peft, tree
from tests.serving.small_llm import CONFIG, PROMPTS, small_params

PATTERNS = {
    "rank_pattern": {"v_proj": 2},
    "alpha_pattern": {"layers.1.self_attn.q_proj": 12, "up_proj": 1},
    "use_rslora": True,
}
ADAPTER = matrices(3, names=("q_proj", "up_proj")) | matrices(4, 2, names=("v_proj",))


def run(source, output, adapter, *options):
    return main([str(source), str(output), "--merge", str(adapter), "--quiet", *options])


def load(directory, dtype=None):
    config = ModelConfig.from_directory(directory)
    return load_params(directory, config, dtype or config.dtype)


def scaled():
    """The matrices with the scales that `PATTERNS` give them."""
    root = {"q_proj": 2 / 2, "up_proj": 1 / 2, "v_proj": 2 / np.sqrt(2)}
    found = {at: each._replace(scale=root[at.name]) for at, each in ADAPTER.items()}
    return {
        at: each._replace(scale=12 / 2) if (at.layer, at.name) == (1, "q_proj") else each
        for at, each in found.items()
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("source")
    save_params(small_params(), CONFIG, directory)
    (directory / "tokenizer_config.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return save_peft(tmp_path_factory.mktemp("adapter"), tree(ADAPTER), **PATTERNS)


def test_logits_are_those_of_an_engine_with_the_adapter(source, adapter, tmp_path):
    assert run(source, tmp_path / "merged", adapter) == 0
    assert (tmp_path / "merged" / "tokenizer_config.json").exists()
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=20, ignore_eos=True)
    options = TINY_SETTINGS | {"dtype": "float32", "skip_tokenizer_init": True}
    prompts = [{"prompt_token_ids": each} for each in PROMPTS]
    found = []
    with (
        LLM(source, enable_lora=True, **options) as engine,
        LLM(tmp_path / "merged", **options) as plain,
    ):
        for llm, asked in ((engine, LoRARequest("a", 1, adapter)), (engine, None), (plain, None)):
            outputs = llm.generate(prompts, params, **({"lora_request": asked} if asked else {}))
            found.append([output.outputs[0].logprobs[0] for output in outputs])
    for own, engines, unadapted in zip(found[2], found[0], found[1], strict=True):
        assert own.keys() == engines.keys() != unadapted.keys()
        for token, each in own.items():
            assert each.logprob == pytest.approx(engines[token].logprob, rel=1e-5, abs=1e-5)


def test_ranks_and_alphas_by_pattern_are_merged(source, adapter, tmp_path):
    assert run(source, tmp_path / "merged", adapter) == 0
    wanted = merged(scaled())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), load(tmp_path / "merged"), wanted
    )


@pytest.mark.parametrize("to", ["safetensors", "orbax"])
def test_weights_are_rounded_once_from_either_format(source, adapter, tmp_path, to):
    """Values of float32 files that are written in bfloat16 are added before they are rounded."""
    kept, out = tmp_path / "kept", tmp_path / "out"
    assert main([str(source), str(kept), "--to", to, "--quiet"]) == 0
    assert is_checkpoint(kept) == (to == "orbax")
    assert run(kept, out, adapter, "--dtype", "bfloat16") == 0
    assert (out / "model.safetensors").exists()
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    found, wanted = load(out), merged(scaled())
    for at in (("0", "self_attn", "q_proj"), ("1", "mlp", "up_proj"), ("1", "mlp", "down_proj")):
        own, exact = (params["model"]["layers"][at[0]][at[1]][at[2]] for params in (found, wanted))
        off = np.abs(np.asarray(own, np.float32) - exact)
        assert (off <= np.abs(exact) * 2**-8 * (1 + 1e-4)).all()  # half a unit in the last place


def test_merged_weights_are_quantized_afterwards(source, adapter, tmp_path):
    plain, at_once, after = (tmp_path / name for name in ("plain", "at_once", "after"))
    assert run(source, plain, adapter) == 0
    assert main([str(plain), str(after), "--quantize", "int8", "--quiet"]) == 0
    assert run(source, at_once, adapter, "--quantize", "int8") == 0
    jax.tree.map(np.testing.assert_array_equal, load(at_once), load(after))
    orbax = tmp_path / "orbax"
    assert main([str(source), str(orbax), "--quiet"]) == 0
    assert run(orbax, tmp_path / "from_orbax", adapter, "--quantize", "int8") == 0
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "from_orbax"), load(after))


def test_projections_that_files_hold_as_one_are_merged_apart(tmp_path):
    small_models.save(tmp_path / "phi", **small_models.FAMILIES["Phi3-0"])
    before = load(tmp_path / "phi")["model"]["layers"]["0"]["self_attn"]
    outputs, inputs = before["k_proj"].shape
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, inputs)), rng.normal(size=(outputs, 4))
    name = "base_model.model.model.layers.0.self_attn.k_proj.lora"
    tensors = {f"{name}_A.weight": a, f"{name}_B.weight": b}
    directory = save_peft(
        tmp_path / "adapter", {key: each.astype(np.float32) for key, each in tensors.items()}
    )
    assert run(tmp_path / "phi", tmp_path / "out", directory) == 0
    after = load(tmp_path / "out")["model"]["layers"]["0"]["self_attn"]
    np.testing.assert_allclose(after["k_proj"], before["k_proj"] + 0.5 * b @ a, atol=1e-4)
    for other in ("q_proj", "v_proj"):
        np.testing.assert_array_equal(after[other], before[other])


def nan(found):
    target = next(iter(found))
    return found | {target: found[target]._replace(a=np.full_like(found[target].a, np.nan))}


@pytest.mark.parametrize(
    ("found", "config", "message"),
    [
        (matrices(0), {"use_dora": True}, "adapter_config.json: use_dora is True"),
        (matrices(0), {"r": 8}, "layers.0.self_attn.q_proj has rank 4, and adapter_config.json"),
        (nan(matrices(0)), {}, "layers.0.self_attn.q_proj holds NaN or infinity"),
        ({}, {}, "changes no projection of any layer"),
    ],
)
def test_bad_adapters_are_one_line_and_nothing_is_written(
    source, tmp_path, capfd, monkeypatch, found, config, message
):
    monkeypatch.setattr("jaxinfer.model.checkpoint.conversion.load_params", None)
    save_peft(tmp_path / "bad", tree(found), **config)
    assert run(source, tmp_path / "out", tmp_path / "bad") == 1
    error = capfd.readouterr().err
    assert error.startswith("jaxinfer convert: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_models_adapter_and_no_adapter_are_one_line(source, tmp_path, capfd):
    assert run(source, tmp_path / "out", tmp_path / "nowhere") == 1
    assert f"{tmp_path / 'nowhere'}: no such directory" in capfd.readouterr().err
    directory = save_peft(tmp_path / "adapter", tree(matrices(0)))
    assert run(BUNDLED_MODELS["bundled"], tmp_path / "out", directory) == 1
    error = capfd.readouterr().err
    assert "it is another model's" in error
    assert error.count("\n") == 1


def test_what_becomes_too_large_for_the_dtype_is_named(source, tmp_path, capfd):
    directory = save_peft(tmp_path / "large", tree(matrices(0)), lora_alpha=1e7)
    assert run(source, tmp_path / "out", directory, "--dtype", "float16") == 1
    error = capfd.readouterr().err
    assert "makes the weight of layers." in error
    assert "NaN or infinity in float16" in error
    assert error.count("\n") == 1


def test_quantized_weights_are_refused(source, adapter, tmp_path, capfd):
    assert main([str(source), str(tmp_path / "int8"), "--quantize", "int8", "--quiet"]) == 0
    assert run(tmp_path / "int8", tmp_path / "out", adapter) == 1
    error = capfd.readouterr().err
    assert "an adapter is merged into plain weights, and the model's are int8 already" in error
    assert error.count("\n") == 1
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert run(tmp_path / "model.gguf", tmp_path / "out", adapter) == 1
    assert "--merge: model.gguf becomes plain safetensors" in capfd.readouterr().err


def test_attention_beside_experts_is_merged_and_experts_are_refused(tmp_path, capfd):
    source = BUNDLED_MODELS["bundled-experts"]
    config = ModelConfig.from_directory(source)
    for part, name, status in (("self_attn", "q_proj", 0), ("mlp", "up_proj", 1)):
        outputs, inputs = projection_shapes(config)[name]
        rng = np.random.default_rng(0)
        path = f"model.layers.0.{part}.{name}.lora"
        a, b = rng.normal(size=(4, inputs)), rng.normal(size=(outputs, 4))
        tensors = {f"{path}_A.weight": a, f"{path}_B.weight": b}
        tensors = {key: each.astype(np.float32) for key, each in tensors.items()}
        adapter = save_peft(tmp_path / name, tensors)
        assert run(source, tmp_path / f"out-{name}", adapter) == status
    assert "layers.0.mlp.up_proj is experts in this model" in capfd.readouterr().err
    before, after = load(source, "float32"), load(tmp_path / "out-q_proj", "float32")
    own = [params["model"]["layers"]["0"]["self_attn"]["q_proj"] for params in (before, after)]
    assert np.abs(own[1] - own[0]).max() > 0.1
