"""Greedy tokens on a GPU are still exactly those of a plain loop when blocks come from files that
another engine wrote."""

from pathlib import Path

import pytest

from jaxinfer.serving.engine.metrics import Counter
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from tests.gpu.bundled import SETTINGS
from tests.gpu.exact import engine, expected_tokens, greedy_tokens

pytestmark = pytest.mark.gpu


def test_blocks_from_files_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchPolicy, "is_worth", lambda *_, **__: True)  # whatever was measured
    files = {
        "kv_offloading_size": 0.001,
        "kv_offloading_directory": str(tmp_path),
        "kv_offloading_disk_size": 1.0,
    }
    hits = []
    for _ in range(2):
        with engine(SETTINGS[3], **files) as llm:
            assert greedy_tokens(llm) == expected_tokens()
            (found,) = (
                each for each in llm.get_metrics() if each.name == "jaxinfer:prefix_tier_hit_blocks"
            )
            assert isinstance(found, Counter)
            hits.append(found.value)
    assert hits[1]
