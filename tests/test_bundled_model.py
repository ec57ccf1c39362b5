"""The files of the bundled model: small, whole, and read alike by transformers and by us."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from jaxinfer.model.checkpoint.weights import resolve_model
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from scripts.evaluation.items.mixture import GENERATORS, held_out_items
from tests.lazy import transformers

MAX_BYTES = 8_000_000
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"é": "<b>"}}}
CALLS = [
    {"type": "function", "function": {"name": "get_time", "arguments": {"city": "東京"}}},
    {"name": "get_time", "arguments": '{"city": "Oslo"}'},
]
TOOL_PREAMBLE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"type": "function", "function": {"name": "get_time", "parameters": {"é": "<b>"}}}\n'
    "</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "a question": (
        [user("Hi")],
        {"add_generation_prompt": True},
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    ),
    "no thinking": (
        [SYSTEM, user("Hi")],
        {"add_generation_prompt": True, "enable_thinking": False},
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    "earlier reasoning is left out": (
        [user("A"), assistant("<think>\nhm\n</think>\n\nB"), user("C"), assistant("D")],
        {"add_generation_prompt": False},
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nD<|im_end|>\n",
    ),
    "the last reasoning stays": (
        [user("A"), assistant("B", reasoning_content="hm\n")],
        {"add_generation_prompt": False},
        "<|im_start|>user\nA<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nB<|im_end|>\n",
    ),
    "tools, calls and their responses": (
        [
            SYSTEM,
            user("Time?"),
            assistant("", tool_calls=CALLS),
            {"role": "tool", "content": "10:00"},
            {"role": "tool", "content": "02:00"},
        ],
        {"add_generation_prompt": True, "tools": [TOOL]},
        "<|im_start|>system\nBe brief.\n\n" + TOOL_PREAMBLE + "<|im_start|>user\nTime?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_time", "arguments": {"city": "東京"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {"city": "Oslo"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n10:00\n</tool_response>\n"
        "<tool_response>\n02:00\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
}


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_model(None, None)


@pytest.fixture(scope="module")
def tokenizer(directory: Path):
    tokenizer = Tokenizer.from_directory(directory)
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def reference(directory: Path):
    return transformers.AutoTokenizer.from_pretrained(directory)


def test_the_files_weigh_at_most_eight_megabytes(directory: Path):
    names = {file.name for file in directory.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert sum(file.stat().st_size for file in directory.iterdir()) <= MAX_BYTES


def test_the_config_is_a_small_qwen3_that_gpu_kernels_can_run(directory: Path):
    config = ModelConfig.from_directory(directory)
    assert (config.head_dim, config.dtype, config.tie_word_embeddings) == (128, "bfloat16", True)
    assert config.num_attention_heads > config.num_key_value_heads > 1
    assert config.max_position_embeddings == 4096


def test_the_weights_are_finite_bfloat16_with_hugging_face_names(directory: Path):
    with safe_open(directory / "model.safetensors", framework="numpy") as file:
        names = set(file.keys())
        assert "model.layers.3.self_attn.q_norm.weight" in names
        assert "lm_head.weight" not in names
        for name in names:
            tensor = file.get_tensor(name)
            assert tensor.dtype.name == "bfloat16"
            assert np.isfinite(tensor.astype(np.float32)).all()


def test_generation_defaults_and_end_tokens_are_those_of_qwen3(directory: Path, tokenizer):
    settings = json.loads((directory / "generation_config.json").read_text())
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (0.6, 20, 0.95)
    ends = {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}
    assert set(tokenizer.eos_token_ids) == ends == set(settings["eos_token_id"])


def test_named_tokens_are_single_and_only_chat_marks_are_special(tokenizer):
    for tag in TAGS:
        (token_id,) = tokenizer.encode(tag)
        assert not tokenizer.is_special(token_id)
    for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        (token_id,) = tokenizer.encode(mark)
        assert tokenizer.is_special(token_id)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1234567890",
        "I'LL we're\n\n  x\t",
        "猫 ねこ 고양이 👨‍👩‍👧 🎂",
        "\u0000\ufffd\U0010ffff",
    ],
)
def test_any_text_survives_a_round_trip(tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_stay_single_and_text_is_composed(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("4096")] == ["4", "0", "9", "6"]
    assert tokenizer.decode(tokenizer.encode("Zoe\u0308")) == "Zoë"


@pytest.mark.parametrize("name", GENERATORS)
def test_transformers_encodes_every_kind_of_text_alike(name: str, tokenizer, reference):
    for item in held_out_items(name, 20):
        text = item.prompt + item.reasoning + item.answer
        assert tokenizer.encode(text) == reference(text)["input_ids"]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_chats_are_written_in_the_format_of_qwen3(name: str, tokenizer, reference):
    messages, options, expected = CONVERSATIONS[name]
    assert tokenizer.apply_chat_template(messages, **options) == expected
    assert reference.apply_chat_template(messages, tokenize=False, **options) == expected
