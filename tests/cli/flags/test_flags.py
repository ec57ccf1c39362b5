"""Flags cover the configuration, are named as in vLLM, and say nothing when they are left out."""

import argparse
import dataclasses

import pytest

from jaxinfer.cli.flags.engine import ENGINE_FIELDS, add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import CommandParser, comma_separated_integers, positive_integer
from jaxinfer.cli.flags.process import is_one_of_several, process_arguments
from jaxinfer.cli.flags.sampling import SAMPLING_FIELDS, add_sampling_flags, sampling_arguments
from jaxinfer.config import EngineConfig
from jaxinfer.sampling_params import SamplingParams


def _parser() -> CommandParser:
    parser = CommandParser("generate", "")
    add_engine_flags(parser)
    add_sampling_flags(parser, max_tokens=256)
    return parser


def test_every_engine_field_has_a_flag():
    destinations = {action.dest for action in _parser()._actions}
    # A command's --quiet decides show_progress.
    assert destinations >= ENGINE_FIELDS - {"show_progress"}


def test_every_sampling_flag_is_a_field():
    assert {field.name for field in dataclasses.fields(SamplingParams)} >= SAMPLING_FIELDS
    assert {action.dest for action in _parser()._actions} >= SAMPLING_FIELDS


def test_flags_left_out_leave_the_librarys_defaults():
    nothing = _parser().parse_args([])
    assert engine_arguments(nothing) == {}
    assert sampling_arguments(nothing) == {}


@pytest.mark.parametrize(
    ("text", "number"), [("512", 512), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500)]
)
def test_lengths_may_have_vllms_suffixes(text, number):
    line = ["--max-model-len", text, "--max-num-batched-tokens", text]
    arguments = engine_arguments(_parser().parse_args(line))
    assert arguments == {"max_model_len": number, "max_num_batched_tokens": number}


@pytest.mark.parametrize("text", ["auto", "-1", "k", "", "nank", "1e999k", "4x"])
def test_what_is_no_length_is_one_line(text, capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args([f"--max-model-len={text}"])
    error = capsys.readouterr().err
    assert "argument --max-model-len: " in error
    assert error.count("\n") == 1


def test_vllms_names_reach_the_configuration():
    line = (
        "--model m --tokenizer t --revision r --dtype bfloat16 --seed 3 --max-model-len 512 "
        '--generation-config vllm --hf-overrides {"rope_theta":5000} '
        "--max-logprobs 9 --max-num-seqs 4 --max-num-batched-tokens 64 --block-size 32 "
        "--num-kv-blocks 9 "
        "--gpu-memory-utilization 0.5 --no-enable-prefix-caching --swap-space 1.5 "
        "--preemption-mode swap --scheduling-policy priority "
        "--tensor-parallel-size 2 --attention-backend xla "
        "--data-parallel-size 3 "
        "--compilation-cache-dir c --no-compile-ahead --device-timeout 60"
    )
    config = EngineConfig(**engine_arguments(_parser().parse_args(line.split())))
    assert config == EngineConfig(
        model="m",
        tokenizer="t",
        generation_config="vllm",
        hf_overrides={"rope_theta": 5000},
        revision="r",
        dtype="bfloat16",
        seed=3,
        max_model_len=512,
        max_logprobs=9,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        block_size=32,
        num_kv_blocks=9,
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
        swap_space=1.5,
        preemption_mode="swap",
        scheduling_policy="priority",
        tensor_parallel_size=2,
        data_parallel_size=3,
        attention_backend="xla",
        compilation_cache_dir="c",
        compile_ahead=False,
        device_timeout=60.0,
    )


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_overrides_must_be_a_json_object(text, capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args(["--hf-overrides", text])
    assert "--hf-overrides: not " in capsys.readouterr().err


def test_a_tokenizer_may_be_left_out():
    given = engine_arguments(_parser().parse_args(["--skip-tokenizer-init"]))
    assert given == {"skip_tokenizer_init": True}


def test_a_command_may_be_one_of_several_processes(monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    line = "--coordinator-address a:1 --num-processes 2 --process-id 1"
    several = _parser().parse_args(line.split())
    assert process_arguments(several) == {
        "coordinator_address": "a:1",
        "num_processes": 2,
        "process_id": 1,
    }
    assert engine_arguments(several) == {}, "they are no part of what the processes compare"
    assert is_one_of_several(several)
    assert not is_one_of_several(_parser().parse_args([]))
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "a:1")
    assert is_one_of_several(_parser().parse_args([]))


@pytest.mark.parametrize("flag", ["--temp", "--temperature"])
def test_temperature_has_two_spellings(flag):
    assert sampling_arguments(_parser().parse_args([flag, "0.5"])) == {"temperature": 0.5}


@pytest.mark.parametrize("flag", ["-m", "--max-tokens"])
def test_max_tokens_has_two_spellings(flag):
    assert sampling_arguments(_parser().parse_args([flag, "5"])) == {"max_tokens": 5}


def test_stop_may_be_repeated():
    namespace = _parser().parse_args(["--stop", "a", "--stop", "b"])
    assert sampling_arguments(namespace) == {"stop": ["a", "b"]}


def test_abbreviated_flags_are_refused():
    with pytest.raises(SystemExit):
        _parser().parse_args(["--max-model", "5"])


@pytest.mark.parametrize("text", ["0", "-1", "x", "1,,2", ""])
def test_counts_must_be_positive_integers(text):
    with pytest.raises(argparse.ArgumentTypeError, match="positive integer"):
        comma_separated_integers(text)


def test_lists_of_counts_are_split_at_commas():
    assert comma_separated_integers("1,8,64") == [1, 8, 64]
    assert positive_integer("8") == 8
    with pytest.raises(argparse.ArgumentTypeError):
        positive_integer("1,8")
