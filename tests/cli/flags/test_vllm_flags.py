"""Every flag of `vllm serve` is taken, or one line says what to do instead."""

import functools
import importlib

import pytest

from jaxinfer import serve
from jaxinfer.checks import instead_of_vllm
from jaxinfer.cli.flags.parser import CommandParser
from jaxinfer.cli.flags.vllm_flags import instead_of_vllm_flags
from tests.vllm_names import SERVE_FLAGS

PARSER = functools.cache(serve.build_parser)
KNOWN = {name for action in PARSER()._actions for name in action.option_strings}


@pytest.fixture(autouse=True)
def one_parser(monkeypatch):
    """Made once: it takes longer than to read a command line."""
    monkeypatch.setattr(serve, "build_parser", PARSER)


def refusal(capsys, *argv):
    with pytest.raises(SystemExit) as leaving:
        serve.main([*argv, "x"])
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("flag", SERVE_FLAGS)
def test_a_flag_of_vllm_is_taken_or_says_what_to_do(flag, capsys):
    if flag in KNOWN:
        return
    instead = instead_of_vllm_flags()[flag]
    assert f"{flag} does not apply: {instead} (see" in refusal(capsys, flag)
    as_python = "--" + flag[2:].replace("-", "_")
    assert f"{flag} does not apply" in refusal(capsys, as_python + "=1")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--no-enforce-eager", "--no-enforce-eager does not apply: every step is compiled"),
        ("--no-enable-chunked-prefill", "raise --max-num-batched-tokens to the longest prompt"),
        ("--compilation-config.mode=3", "--compilation-config does not apply"),
        ('--compilation-config={"mode": 3}', "--compilation-config does not apply"),
        ("-O3", "--compilation-config does not apply"),
        ("-O.mode=3", "--compilation-config does not apply"),
        ("-pcp=2", "--prefill-context-parallel-size does not apply: write --context-parallel-size"),
        ("--rope_theta", "write --hf-overrides={...}"),
        ("--no-such-flag", "unrecognized arguments"),
    ],
)
def test_a_flag_is_known_however_it_is_written(word, said, capsys):
    assert said in refusal(capsys, word, "MODEL")


@pytest.mark.parametrize(
    ("command", "flag", "said"),
    [
        ("generate", "--enforce-eager", "write --no-compile-ahead to compile"),
        ("generate", "--nnodes", "write --coordinator-address, --num-processes and --process-id"),
        ("generate", "--enable-lora", "write --lora DIR (see"),
        ("generate", "--lora-modules", "write --lora DIR (see"),
        ("chat", "--max-lora-rank", "write --lora DIR (see"),
        ("embed", "--max-loras", "leave it out (see"),
        ("chat", "--chat-template", "put yours into the model's directory"),
        ("embed", "--gdn-prefill-backend", "kernels are chosen by --attention-backend"),
        ("evaluate", "--trust-remote-code", "a model's Python files are never run"),
        ("evaluate", "--gdn-prefill-backend", "leave it out"),  # it has no --attention-backend
        ("profile", "--kv-offloading-backend", "write --kv-offloading-size"),
        ("plan", "--block-size-of-nothing", None),
        ("plan", "--trust-remote-code", "a model's Python files are never run"),
        ("generate", "-n", None),  # vLLM's short flags are those of its server
    ],
)
def test_every_command_says_what_to_do(command, flag, said, capsys):
    with pytest.raises(SystemExit) as leaving:
        importlib.import_module(f"jaxinfer.{command}").main([flag, "x"])
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert (f"{flag} does not apply: {said}" in error) if said else "not apply" not in error


def test_text_behind_two_hyphens_is_no_flag(capsys):
    parser = CommandParser("some", "")
    parser.add_argument("text")
    assert parser.parse_args(["--", "--trust-remote-code"]).text == "--trust-remote-code"


def test_what_is_said_names_no_python_argument():
    own = {name.replace("-", "_") for name in KNOWN}
    for flag in SERVE_FLAGS:
        for word in instead_of_vllm_flags().get(flag, "").replace("=", " ").split():
            assert "--" + word.strip(".,;()") not in own, flag


def test_no_flag_of_this_server_is_refused():
    own = {"--" + name.replace("_", "-") for name in instead_of_vllm("serve")}
    assert not own & KNOWN
