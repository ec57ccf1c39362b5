"""Engines on int8 weights answer, bit for bit, as engines on the plain weights they stand for."""

import dataclasses
import pickle
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams, forward, make_mesh
from jaxinfer.generate import main as generate
from jaxinfer.kernels.implementations import import_all
from jaxinfer.kernels.matmul.mosaic.small_plan import MOST_ROWS
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.plan import main as plan
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.serving.compile.program_store import ProgramStore, export_program
from jaxinfer.serving.compile.tracing_worker import make_task
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.testing import tiny_llm, tiny_params
from tests.kernels.h200_target import trace_for_h200
from tests.model import tiny
from tests.serving.small_llm import CONFIG, ids

FORMAT = Quantization("int8", ignore=())
INT8 = dataclasses.replace(CONFIG, quantization=FORMAT)
PARAMS = SamplingParams(
    temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1
)
PROMPTS = [[1, 2, 3], [4, 5], list(range(6, 60))]


@pytest.fixture(scope="module")
def params():
    return quantize_params(tiny_params(seed=1), FORMAT)


@pytest.fixture(scope="module")
def directory(params, tmp_path_factory):
    path = tmp_path_factory.mktemp("int8")
    save_params(params, INT8, path)
    return path


def answers(llm):
    """Tokens, and every log-probability that was asked for."""
    found = []
    for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False):
        completion = output.outputs[0]
        positions = [*output.prompt_logprobs[1:], *completion.logprobs]
        values = [{i: each.logprob for i, each in at.items()} for at in positions]
        found.append((completion.token_ids, values))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mesh": 2},
        pytest.param({"mesh": 4}, marks=pytest.mark.slow),
        pytest.param({"num_decode_steps": 4}, marks=pytest.mark.slow),
        {"kv_cache_dtype": "int8", "max_num_batched_tokens": 16},
    ],
    ids=str,
)
def test_a_directory_answers_as_its_plain_weights_do(directory, params, settings):
    if "mesh" in settings:
        settings = settings | {"mesh": make_mesh(settings["mesh"])}
    plain = tiny.plain_params(params, "float32")
    with tiny_llm(params=plain, config=CONFIG, **settings) as llm:
        expected = answers(llm)
    given = {"model": str(directory), "skip_tokenizer_init": True}
    with tiny_llm(params=None, config=None, **given, **settings) as llm:
        assert llm.model_config == dataclasses.replace(INT8, quantization=FORMAT.saved())
        held = llm._loaded.replicas[0].runner.resident.params
        assert held["lm_head"]["weight"].dtype == np.int8
        assert answers(llm) == expected
        leaves = jax.tree.leaves(held)
        assert llm.report.weight_bytes == sum(
            leaf.addressable_shards[0].data.nbytes for leaf in leaves
        )


@pytest.mark.parametrize(
    ("changes", "quantization", "dtype"),
    [
        pytest.param({"tie_word_embeddings": True}, FORMAT, "float32", marks=pytest.mark.slow),
        pytest.param({}, Quantization("int8"), "bfloat16", marks=pytest.mark.slow),
        pytest.param(
            {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
            FORMAT,
            "float32",
            marks=pytest.mark.slow,
        ),
        (
            {},
            Quantization("int8", ignore=("re:.*layers.1", "model.layers.0.mlp.up_proj")),
            "float32",
        ),
    ],
    ids=str,
)
def test_so_do_trees_of_other_models(changes, quantization, dtype):
    config = dataclasses.replace(CONFIG, **changes)
    tree = quantize_params(tiny_params(config, dtype, seed=2), quantization)
    with tiny_llm(params=tiny.plain_params(tree, dtype), config=config) as llm:
        expected = answers(llm)
    quantized = dataclasses.replace(config, quantization=quantization)
    with tiny_llm(params=tree, config=quantized) as llm:
        assert answers(llm) == expected


def test_forward_scores_what_was_served(directory, params):
    with tiny_llm(params=None, config=None, model=str(directory), skip_tokenizer_init=True) as llm:
        tokens = jnp.array(PROMPTS[2])
        served = llm.generate([PROMPTS[2]], PARAMS, use_tqdm=False)[0].prompt_logprobs[1:]
    scored = jax.nn.log_softmax(forward(params, INT8, tokens))
    for position, (token, at) in enumerate(zip(tokens[1:].tolist(), served, strict=True)):
        np.testing.assert_allclose(at[token].logprob, scored[position, token], atol=1e-4)


def test_weights_that_slept_in_host_memory_answer_alike(directory):
    with tiny_llm(params=None, config=None, model=str(directory), skip_tokenizer_init=True) as llm:
        expected = answers(llm)
        llm.sleep(level=1)
        llm.wake_up()
        assert answers(llm) == expected
        held = llm._loaded.replicas[0].runner.resident.params
        assert held["lm_head"]["weight"].dtype == np.int8


def _programs(num_layers, quantization=FORMAT):
    config = tiny.config(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=num_layers,
        quantization=quantization,
    )
    mesh, rules = make_mesh(1), ShardingRules()
    context = StepContext(config, mesh, rules, Kernels("xla"), 16, "float32")
    return Programs(context, abstract_params(config, "float32", mesh, rules), 9, 5)


@pytest.mark.parametrize(
    "key",
    [
        PrefillShape(16, 4, 8),
        DecodeShape(4, 8),
        SampledDecodeKey(DecodeShape(4, 8), "temperature", 4),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_step_makes_the_plain_weights_of_one_layer_at_a_time(key):
    """Also in the loop of several steps, before which XLA would make all of them."""
    taken = [
        program_of(_programs(count), key).lower().compile().memory_analysis().temp_size_in_bytes
        for count in (2, 4)
    ]
    assert taken[1] - taken[0] < 256 * 768 * 4 / 4, "a quarter of a matrix of the MLP"


@pytest.mark.parametrize(
    ("num_devices", "key"),
    [
        pytest.param(1, DecodeShape(4, 64), marks=pytest.mark.slow),
        (2, DecodeShape(4, 64)),
        pytest.param(1, DecodeShape(64, 64), marks=pytest.mark.slow),
        pytest.param(2, DecodeShape(64, 64), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_on_hopper_products_of_batches_have_kernels_of_codes(key, num_devices):
    def kernels(ignore):
        config = tiny.config(
            hidden_size=1024,
            intermediate_size=3072,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            quantization=Quantization("int8", ignore=ignore),
        )
        mesh, rules = make_mesh(num_devices), ShardingRules()
        context = StepContext(config, mesh, rules, Kernels("mosaic"), 16, "bfloat16")
        params = abstract_params(config, "bfloat16", mesh, rules)
        program = program_of(Programs(context, params, 2000, 17), key)
        traced = str(trace_for_h200(program.function, *program.arguments).jaxpr)
        return set(re.findall(r"\bname='?((?:small|medium|norm_rope|add_norm)_?\w*)", traced))

    import_all("mosaic")
    assert any(name.startswith(("small", "medium")) for name in kernels(("re:.*",)))
    products = kernels(()) - {"norm_rope_write"}
    if key.rows > MOST_ROWS:
        assert {"medium_codes_project", "medium_codes_gated"} == products
    else:
        assert {"small_plain", "small_gated"} < products
    some = kernels(("re:.*mlp",))
    assert some > {"norm_rope_write"}, "plain weights beside integers keep their kernels"


def test_its_programs_are_kept_and_traced_alike_elsewhere(tmp_path):
    store, key = ProgramStore(tmp_path), DecodeShape(2, 4)
    programs = _programs(2, Quantization("int8", ignore=("lm_head", "re:.*q_proj")))
    task = make_task(programs, {key: "decode"}, store=store, platform="cpu")
    command = "import pickle, sys; from jaxinfer.serving.compile.tracing_worker import trace; "
    command += "trace(pickle.load(sys.stdin.buffer))"
    subprocess.run([sys.executable, "-c", command], input=pickle.dumps(task), check=True)
    here, there = export_program(program_of(programs, key), "cpu"), store.load("decode")
    assert there is not None
    assert there.in_avals == here.in_avals
    assert there.in_tree == here.in_tree
    assert np.dtype(np.int8) in {each.dtype for each in there.in_avals}


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """The bundled model with int8 weights, and with the plain ones that they stand for."""
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    quantization = Quantization("int8")
    tree = quantize_params(load_params(BUNDLED_MODEL, config, "float32"), quantization)
    found = []
    for name, params, own in (
        ("int8", tree, dataclasses.replace(config, quantization=quantization)),
        ("plain", tiny.plain_params(tree, "float32"), config),
    ):
        path = tmp_path_factory.mktemp(name)
        shutil.copytree(BUNDLED_MODEL, path, dirs_exist_ok=True)
        save_params(params, own, path)
        found.append(path)
    return found


@pytest.mark.slow
def test_commands_take_a_directory_of_int8_weights(bundled, capsys):
    said = []
    for path in bundled:
        arguments = ["--model", str(path), "--max-tokens", "12", "--temperature", "0", "--quiet"]
        assert generate(["Once upon a time", *arguments]) == 0
        said.append(capsys.readouterr().out)
        assert plan([str(path), "--dtype", "bfloat16"]) == 0
        assert ("int8 weights" in capsys.readouterr().out) == (path == bundled[0])
    assert said[0] == said[1]
    assert len(said[0]) > 20


@pytest.mark.slow
def test_a_profile_counts_integers(bundled, tmp_path):
    read = []
    for path in bundled:
        with LLM(str(path), max_num_seqs=2, max_model_len=64, show_progress=False) as llm:
            llm.generate(["a"], SamplingParams(max_tokens=4), use_tqdm=False)
            with llm.profile(tmp_path / path.name):
                (output,) = llm.generate(["a"], SamplingParams(max_tokens=8), use_tqdm=False)
        report = ProfileReport.read(tmp_path / path.name)
        (mlp,) = [row for row in report.parts if row.part == "mlp" and row.kind == "decode"]
        read.append(mlp.num_bytes)
        assert len(ids([output])[0]) == 8
    assert 0.2 < read[0] / read[1] < 0.4
