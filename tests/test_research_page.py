"""docs/research.md is one program, and it runs."""

import re
from pathlib import Path

import jax
import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "research.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_the_other():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, object] = {"__name__": "page"}
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # a user's
            for block in blocks:
                exec(compile(block, str(PAGE), "exec"), scope)
        assert scope["plain"].outputs[0].text != scope["steered"].outputs[0].text
        first, without, second = (output.outputs[0].text for output in scope["mixed"])
        assert len({first, without, second}) == 3
        assert scope["updated"].outputs[0].text == second
    finally:
        if "llm" in scope:
            scope["llm"].close()
