"""The bundled model with experts: transformers' tokens however it is batched; experts differ."""

import contextlib
import json

import jax
import numpy as np
import pytest
from safetensors import safe_open

from jaxinfer import LLM, ModelConfig, SamplingParams, Tokenizer, load_params
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL, BUNDLED_MODELS
from jaxinfer.model.experts import Experts
from scripts.bundled_model.assets import MAX_BYTES
from scripts.bundled_model.balance import logits_and_routers, shares_of
from scripts.evaluation.items.mixture import held_out_items
from tests.lazy import torch, transformers

NAME = "bundled-experts"
DIRECTORY = BUNDLED_MODELS[NAME]
NUM_OUTPUTS = 16
BLOCK_SIZE, MAX_MODEL_LEN = 16, 128
SYSTEM = "You are a helpful fox who answers every question in one short sentence. "
PROMPTS = (
    "Once upon a time",
    "37 + 45 =",
    'Write JSON: {"name": "Ada", "age": ',
    SYSTEM + "What is 2 + 3?",
    SYSTEM + "What is 2 + 3? Who lives in the harbor?",
    "The little fox and the whale went to the harbor, and there they saw a big stone. " * 3,
)


@contextlib.contextmanager
def engine(**settings):
    with LLM(
        NAME,
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=len(PROMPTS),
        block_size=BLOCK_SIZE,
        num_kv_blocks=1 + len(PROMPTS) * MAX_MODEL_LEN // BLOCK_SIZE,
        compile_ahead=False,
        show_progress=False,
        **settings,
    ) as llm:
        yield llm


def greedy_tokens(llm):
    greedy = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)
    outputs = llm.generate(list(PROMPTS), greedy, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def tokenizer():
    with contextlib.closing(Tokenizer.from_directory(DIRECTORY)) as tokenizer:
        yield tokenizer


@pytest.fixture(scope="module")
def expected(tokenizer):
    """transformers' greedy tokens, of one prompt after the other."""
    model = transformers.Qwen3MoeForCausalLM.from_pretrained(DIRECTORY, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.inference_mode():
            written = model.generate(
                ids, max_new_tokens=NUM_OUTPUTS, do_sample=False, pad_token_id=0
            )
        found.append(written[0, ids.shape[1] :].tolist())
    return found


def test_the_files_are_those_of_the_dense_model_but_for_weights_and_config():
    """One tokenizer serves both, and both are in the package."""
    assert {file.name for file in DIRECTORY.iterdir()} == {
        file.name for file in BUNDLED_MODEL.iterdir()
    }
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (DIRECTORY / name).read_bytes() == (BUNDLED_MODEL / name).read_bytes()
    generation = [
        json.loads((d / "generation_config.json").read_text()) for d in (DIRECTORY, BUNDLED_MODEL)
    ]
    assert generation[0] == generation[1]
    assert sum(file.stat().st_size for file in DIRECTORY.iterdir()) <= MAX_BYTES
    config = ModelConfig.from_directory(DIRECTORY)
    assert (config.experts, config.dtype) == (Experts(8, 2, 64), "bfloat16")
    with safe_open(DIRECTORY / "model.safetensors", framework="numpy") as file:
        assert "model.layers.3.mlp.experts.7.down_proj.weight" in file.keys()  # noqa: SIM118
        assert all(
            np.isfinite(file.get_tensor(name).astype(np.float32)).all()
            for name in file.keys()  # noqa: SIM118
        )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_tokens_are_those_of_transformers(expected, devices):
    """All prompts at once, on one device or two: no cut prompt, no cached prefix, room for all."""
    with engine(tensor_parallel_size=devices, enable_prefix_caching=False) as llm:
        assert greedy_tokens(llm) == expected


@pytest.mark.slow
def test_chunks_cached_prefixes_and_preemption_change_no_token(expected):
    with engine(max_num_batched_tokens=32) as llm:
        scheduler = llm._loaded.replicas[0].scheduler
        # What is left has room for one sequence of full length.
        pool, num_left = scheduler.pool, MAX_MODEL_LEN // BLOCK_SIZE
        held = pool.allocate(pool.num_usable_blocks - num_left)
        assert greedy_tokens(llm) == expected
        assert scheduler.num_preemptions > 0
        pool.free(held)
        assert greedy_tokens(llm) == expected
        greedy = SamplingParams(temperature=0.0, max_tokens=1)
        assert llm.generate(PROMPTS[4], greedy, use_tqdm=False)[0].num_cached_tokens > 0


@pytest.mark.slow
def test_experts_of_every_layer_prefer_a_kind_of_text(tokenizer):
    """Sums and calls share out their tokens otherwise than two texts of one kind do."""
    config = ModelConfig.from_directory(DIRECTORY)
    params = load_params(DIRECTORY, config, "float32")

    @jax.jit
    def shares(token_ids):
        _, routers = logits_and_routers(params, config, token_ids)
        is_token = np.ones(token_ids.size, bool)
        return shares_of(routers, config.experts, is_token)[0] / config.experts.experts_per_token

    def of_kind(name):
        texts = [item.prompt + item.reasoning + item.answer for item in held_out_items(name, 60)]
        ids = tokenizer.encode("\n".join(texts))
        return [np.asarray(shares(np.asarray(ids[i : i + 512], np.int32))) for i in (0, 512)]

    def distance(one, other):
        """Of each layer: the share of the choices that went to another expert."""
        return np.abs(one - other).sum(axis=-1) / 2

    (sums, more_sums), (calls, more_calls) = of_kind("sum"), of_kind("tool_call")
    within = np.maximum(distance(sums, more_sums), distance(calls, more_calls))
    across = distance(sums, calls)
    assert np.all(across > 0.15), across
    assert np.all(across > 2 * within), (across, within)
