"""`--help` answers at once, and a mistake on the command line is one line."""

import subprocess
import sys

import pytest

from jaxinfer.__main__ import COMMANDS, dispatch

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


def test_an_unknown_command_is_named_with_the_known_ones(capsys):
    assert dispatch(["generat"]) == 2
    message = capsys.readouterr().err
    assert "no command 'generat'" in message
    assert "generate" in message


def test_version_is_the_packages(capsys):
    assert dispatch(["--version"]) == 0
    assert capsys.readouterr().out == "jaxinfer 0.1.0\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_on_the_command_line_is_one_line_and_status_2(name, capsys):
    assert dispatch([name, "--no-such-flag"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"jaxinfer {name}: error: ")
    assert output.err.count("\n") == 1
