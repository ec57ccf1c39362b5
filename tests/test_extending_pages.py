"""The pages of docs/extending: all are listed, and a user's sampling functions run as they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[1] / "docs" / "extending"
PROGRAMS = re.findall(r"```python\n(.*?)```", (PAGES / "sampler.md").read_text(), re.DOTALL)
(EAGER,) = re.findall(r"```python\n(.*?)```", (PAGES / "debugging.md").read_text(), re.DOTALL)


def test_every_page_is_listed():
    listed = set(re.findall(r"\]\((\w+\.md)\)", (PAGES / "README.md").read_text()))
    assert listed | {"README.md"} == {page.name for page in PAGES.glob("*.md")}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=["logits_processor", "sampler"])
def test_a_function_of_ones_own_samples_as_it_says(program):
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" True\n")


@pytest.mark.slow
def test_a_function_of_ones_own_sees_values_in_the_eager_mode():
    done = subprocess.run(
        [sys.executable, "-c", EAGER], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("spread")]
    assert len(lines) == 4  # at start, and a token each
    assert all(float(line.rpartition(" ")[2]) > 0 for line in lines[1:])
