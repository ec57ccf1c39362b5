"""The npm packages of Anthropic and OpenAI against a real server."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.anthropic.test_messages import CALL
from tests.server.openai.http_server import serving
from tests.server.openai.scripted import ScriptedEngine

SCRIPT = Path(__file__).with_name("npm_clients.mjs")
PACKAGES = ["@anthropic-ai/sdk@1.14.0", "openai@7.59.0"]


def run(command, directory, seconds):
    return subprocess.run(
        command, cwd=directory, timeout=seconds, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A directory with the packages, and the script among them."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs Node.js and npm")
    directory = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES]
    made = run(command, directory, 120)
    if made.returncode:
        pytest.skip(f"npm installs nothing here: {made.stderr.strip()[-200:]}")
    shutil.copy(SCRIPT, directory)
    return directory


@pytest.mark.slow
def test_messages_tools_streams_and_errors(packages, engine, make_client):
    scripted = ScriptedEngine(engine, f"I look.\n{CALL}", length=2)
    with serving(make_client(scripted).app) as port:
        command = ["node", SCRIPT.name, f"http://127.0.0.1:{port}"]
        ended = run(command, packages, 60)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    city = {"city": "Oslo"}
    assert found.pop("counted") > 5
    assert found == {
        "message": ["tool_use", "get_weather", city],
        "events": ["message_start", "message_stop", city],
        "turn": "assistant",
        "refused": [404, "not_found_error"],
        "chat": ["tool_calls", "get_weather", city],
        "response": ["response.created", "response.completed", "completed"],
        "unknown": 404,
    }
