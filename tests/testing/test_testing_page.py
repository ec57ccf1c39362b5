"""The public tools for tests do what their page says."""

import re
from pathlib import Path

import pytest

from jaxinfer import testing

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "extending" / "testing.md").read_text()
SMALL_ENGINE, FAKE_DEVICE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_a_small_engine_writes_what_the_reference_does():
    exec(SMALL_ENGINE, {})  # our own page


def test_a_fake_device_runs_an_engine_that_recovers():
    exec(FAKE_DEVICE, {})


def test_every_tool_is_on_the_page():
    assert [name for name in testing.__all__ if f"`{name}`" not in PAGE] == []
