"""docs/rl.md is one program, and it runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "rl.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_the_other():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) > 5
    scope: dict[str, object] = {"__name__": "page"}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), scope)
    finally:
        if "llm" in scope:
            scope["llm"].close()
