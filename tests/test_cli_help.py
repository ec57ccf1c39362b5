"""`--help` answers at once, and a mistake on the command line is one line."""

import importlib
import subprocess
import sys

import pytest

from jaxinfer.__main__ import COMMANDS, dispatch
from jaxinfer.config import EngineConfig
from jaxinfer.generate import build_parser

HEAVY = ("jax", "flax", "orbax", "tokenizers", "huggingface_hub", "transformers", "torch")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_loads_nothing_heavy(name):
    program = (
        "import sys\n"
        "from jaxinfer.__main__ import dispatch\n"
        f"status = dispatch(['{name}', '--help'])\n"
        f"print(status, [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1:] == ["0 []"], done.stderr
    assert f"usage: jaxinfer {name}" in done.stdout


def test_the_overview_lists_every_command(capsys):
    assert dispatch(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(name in overview for name in COMMANDS)


def test_no_command_is_a_mistake(capsys):
    assert dispatch([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_an_unknown_command_is_named_with_the_nearest_or_all_known_ones(capsys):
    assert dispatch(["generat"]) == 2
    assert capsys.readouterr().err.endswith("no command 'generat'; did you mean 'generate'?\n")
    assert dispatch(["zzz"]) == 2
    assert "there are generate, chat" in capsys.readouterr().err


def test_version_is_the_packages(capsys):
    assert dispatch(["--version"]) == 0
    assert capsys.readouterr().out == "jaxinfer 0.2.0\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_on_the_command_line_is_one_line_and_status_2(name, capsys):
    assert dispatch([name, "--no-such-flag"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"jaxinfer {name}: error: ")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_default_of_every_value(name):
    parser = importlib.import_module(f"jaxinfer.{name}").build_parser()
    from_the_model = "sampling (defaults are the model's)"
    for group in parser._action_groups:
        for action in group._group_actions:
            if not action.option_strings or action.nargs == 0 or group.title == from_the_model:
                continue
            if action.dest in ("prompt", "prompts_file", "serve"):  # must be given
                continue
            assert "default:" in (action.help or ""), action.option_strings


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet(name):
    parser = importlib.import_module(f"jaxinfer.{name}").build_parser()
    assert any({"-q", "--quiet"} <= set(action.option_strings) for action in parser._actions)


def test_defaults_in_help_are_those_of_the_configuration():
    text = build_parser().format_help()
    assert f"(default: {EngineConfig.block_size})" in text
