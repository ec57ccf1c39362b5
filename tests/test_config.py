"""EngineConfig refuses, by name, everything that can't work."""

import dataclasses
import typing

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.config import EngineConfig, max_kv_blocks

BAD = [-1, 2**63, float("nan"), float("inf"), True, "1", [], 0.5]
INTEGERS = [
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_kv_blocks",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [*BAD, 0])
def test_integer_fields_refuse_everything_else(name, value):
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
        EngineConfig(**typing.cast(typing.Any, {name: value}))


@pytest.mark.parametrize("value", [*BAD, None])
def test_seed_must_be_a_non_negative_integer(value):
    with pytest.raises((TypeError, ValueError), match=r"^seed must be"):
        EngineConfig(seed=value)


@pytest.mark.parametrize("value", [-0.1, 0, 1.1, float("nan"), float("inf"), True, "1", None, []])
def test_gpu_memory_utilization_is_a_share(value):
    with pytest.raises((TypeError, ValueError), match=r"^gpu_memory_utilization must be"):
        EngineConfig(gpu_memory_utilization=value)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 2**63, True, "1", None, []])
def test_swap_space_is_an_amount(value):
    with pytest.raises((TypeError, ValueError), match=r"^swap_space must be"):
        EngineConfig(swap_space=value)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 2**63, True, "1", []])
def test_device_timeout_is_a_time(value):
    with pytest.raises((TypeError, ValueError), match=r"^device_timeout must be"):
        EngineConfig(device_timeout=value)


def test_numpys_numbers_are_kept_as_pythons():
    config = EngineConfig(
        **typing.cast(typing.Any, {"seed": np.int64(3), "swap_space": np.float32(0.5)})
    )
    assert [(type(x), x) for x in (config.seed, config.swap_space)] == [(int, 3), (float, 0.5)]


def test_a_refused_value_is_shown_in_part():
    with pytest.raises(TypeError) as caught:
        EngineConfig(seed=typing.cast(typing.Any, "x" * 1000))
    assert len(str(caught.value)) < 100


def test_only_accelerators_are_timed_unless_that_is_asked_for():
    assert EngineConfig().step_time_limit("gpu") == 300
    assert EngineConfig().step_time_limit("cpu") == 0
    assert EngineConfig(device_timeout=5).step_time_limit("cpu") == 5
    assert EngineConfig(device_timeout=0).step_time_limit("gpu") == 0
    assert EngineConfig().start_time_limit("gpu") == 60
    assert EngineConfig().start_time_limit("cpu") == 0
    assert EngineConfig(device_timeout=5).start_time_limit("cpu") == 5
    assert EngineConfig(device_timeout=0).start_time_limit("gpu") == 0


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
def test_block_sizes_are_powers_of_two(block_size):
    assert EngineConfig(block_size=block_size).block_size == block_size
    with pytest.raises(ValueError, match=r"^block_size must be"):
        EngineConfig(block_size=block_size + 1)


@pytest.mark.parametrize("block_size", [8, 16, 256])
def test_places_in_the_cache_are_int32(block_size):
    most = (2**31 - 1) // block_size
    assert max_kv_blocks(block_size) == most
    assert EngineConfig(block_size=block_size, num_kv_blocks=most).num_kv_blocks == most
    with pytest.raises(ValueError, match=rf"^num_kv_blocks \({most + 1}\).*at most {most}$"):
        EngineConfig(block_size=block_size, num_kv_blocks=most + 1)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("half", "float16"),
        ("float", "float32"),
        (jnp.bfloat16, "bfloat16"),
        (jnp.dtype("float16"), "float16"),
        (jnp.zeros(1, jnp.float32).dtype, "float32"),
    ],
)
def test_a_dtype_has_several_spellings(given, name):
    assert EngineConfig(dtype=given).dtype == name


def test_an_impossible_dtype_is_named():
    with pytest.raises(ValueError, match=r"dtype must be one of .* got 'int32'"):
        EngineConfig(dtype=typing.cast(typing.Any, jnp.int32))


@pytest.mark.parametrize("value", [-2, 2**25, True, "1", None])
def test_max_logprobs_is_a_number_or_minus_one(value):
    with pytest.raises((TypeError, ValueError), match=r"^max_logprobs must be"):
        EngineConfig(max_logprobs=value)


def test_log_probabilities_are_counted_within_the_vocabulary():
    assert [EngineConfig(max_logprobs=n).count_logprobs(9) for n in (-1, 5, 20)] == [9, 5, 9]


@pytest.mark.parametrize(
    "name", ["dtype", "generation_config", "preemption_mode", "attention_backend"]
)
@pytest.mark.parametrize("value", ["nonsense", None, 3, []])
def test_choices_list_what_is_possible(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be one of "):
        EngineConfig(**typing.cast(typing.Any, {name: value}))


def test_what_may_be_left_to_the_platform_is_else_a_yes_or_no():
    with pytest.raises(TypeError, match=r"^compile_ahead must be True, False or None, got 1$"):
        EngineConfig(compile_ahead=typing.cast(typing.Any, 1))


def test_compiling_ahead_is_for_accelerators_unless_asked_for():
    assert EngineConfig().compiles_ahead("gpu")
    assert not EngineConfig().compiles_ahead("cpu")
    assert EngineConfig(compile_ahead=True).compiles_ahead("cpu")
    assert not EngineConfig(compile_ahead=False).compiles_ahead("gpu")


@pytest.mark.parametrize("name", ["enable_prefix_caching", "show_progress"])
@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_flags_are_booleans(name, value):
    with pytest.raises(TypeError, match=f"^{name} must be True or False"):
        EngineConfig(**typing.cast(typing.Any, {name: value}))


@pytest.mark.parametrize("name", ["model", "tokenizer", "revision", "compilation_cache_dir"])
def test_names_are_text(name):
    with pytest.raises(TypeError, match=f"^{name} must be a string"):
        EngineConfig(**typing.cast(typing.Any, {name: 3}))


def test_an_empty_model_name_is_an_error_but_an_empty_cache_dir_means_off():
    with pytest.raises(ValueError, match=r"^model must not be an empty string"):
        EngineConfig(model="")
    assert EngineConfig(compilation_cache_dir="").compilation_cache_dir == ""


def test_a_step_must_have_room_for_a_token_of_every_sequence():
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(32\) must be at least"):
        EngineConfig(max_num_batched_tokens=32)
    assert EngineConfig(max_num_batched_tokens=32, max_num_seqs=32).token_budget("gpu") == 32


def test_whole_numbers_are_fine_where_numbers_are():
    config = EngineConfig(gpu_memory_utilization=1, swap_space=4, preemption_mode="swap")
    assert (config.gpu_memory_utilization, config.swap_space) == (1.0, 4.0)


def test_swapping_needs_somewhere_to_swap_to():
    with pytest.raises(ValueError, match="swap_space"):
        EngineConfig(preemption_mode="swap")


def test_the_token_budget_depends_on_the_platform_and_the_running_set():
    assert EngineConfig().token_budget("cpu") == 2048
    assert EngineConfig().token_budget("gpu") == 16384
    assert EngineConfig(max_num_seqs=10_000).token_budget("cpu") == 10_000


def test_auto_dtype_is_the_checkpoints_on_a_gpu_and_float32_on_a_cpu():
    assert EngineConfig().resolve_dtype("bfloat16", "gpu") == "bfloat16"
    assert EngineConfig().resolve_dtype("bfloat16", "cpu") == "float32"
    assert EngineConfig(dtype="float16").resolve_dtype("bfloat16", "cpu") == "float16"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_num_seq", "did you mean 'max_num_seqs'"),
        ("gpu_memory_utilisation", "did you mean 'gpu_memory_utilization'"),
        ("mesk", "did you mean 'mesh'"),
        ("zzzzzz", r"valid ones are .*docs/from-vllm\.md"),
        ("enable_loro", "did you mean 'enable_lora'"),
        ("lora_dtype", "dtype of activations"),
        ("enforce_eager", "compile_ahead=False"),
        ("trust_remote_code", "never run"),
    ],
)
def test_an_unknown_keyword_is_named_with_what_to_write_instead(name, text):
    with pytest.raises(TypeError, match=text) as caught:
        EngineConfig.from_keywords({name: 1}, owner="LLM", also=("mesh",))
    assert f"LLM() got an unknown keyword argument {name!r}" in str(caught.value)


def test_keywords_become_fields():
    assert EngineConfig.from_keywords({"seed": 3, "block_size": 32}) == EngineConfig(
        seed=3, block_size=32
    )


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().seed = 1  # type: ignore[misc]


FILES = {
    "kv_offloading_size": 1.0,
    "kv_offloading_directory": "blocks",
    "kv_offloading_disk_size": 2,
}


def test_files_of_blocks_have_a_directory_and_a_size():
    config = EngineConfig(**FILES)
    assert (config.kv_offloading_directory, config.kv_offloading_disk_size) == ("blocks", 2.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv_offloading_size": 0}, "_directory keeps blocks that leave host memory: set kv_offlo"),
        ({"kv_offloading_disk_size": 0}, "go together: give both or neither"),
        ({"kv_offloading_directory": None}, "go together: give both or neither"),
        ({"kv_offloading_directory": ""}, "kv_offloading_directory must not be an empty string"),
        ({"kv_offloading_disk_size": -1}, "kv_offloading_disk_size must be from 0 to"),
        ({"kv_offloading_directory": 3}, "kv_offloading_directory must be a string or None, got 3"),
    ],
    ids=str,
)
def test_files_of_blocks_need_both_and_host_memory(changed, message):
    with pytest.raises((TypeError, ValueError), match=message):
        EngineConfig(**(FILES | changed))
