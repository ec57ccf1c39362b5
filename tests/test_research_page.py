"""docs/research.md is one program, and it runs."""

import re
from pathlib import Path

import jax
import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "research.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_the_other_and_write_what_it_says():
    page = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, object] = {"__name__": "page"}
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # a user's
            for block in blocks:
                exec(compile(block, str(PAGE), "exec"), scope)
        written = [scope[name].outputs[0].text for name in ("plain", "steered")]
        written += [output.outputs[0].text for output in scope["mixed"]]
        assert [text for text in written if f"# {text.strip()}\n" not in page] == []
        assert len(set(written)) == 5
        assert scope["updated"].outputs[0].text == written[-1]
    finally:
        if "llm" in scope:
            scope["llm"].close()
