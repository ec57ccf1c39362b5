"""The engine's process refuses adapters that can't be loaded before its engine starts."""

import io

import pytest

from jaxinfer.cli.service import engine_process


@pytest.fixture
def settings(monkeypatch):
    """What a parent sends, for an engine that must not start."""
    monkeypatch.setattr("jaxinfer.cli.platform.start_platform", lambda: "cpu")
    monkeypatch.setattr("jaxinfer.serving.handle_start.start_handle", pytest.fail)
    return {"limits": {}, "engine": {"enable_lora": True}, "adapters": [], "socket": "/none"}


def test_a_directory_that_is_none_is_refused(settings):
    settings["adapters"] = [("sql", "/missing")]
    with pytest.raises(ValueError, match=r"^/missing: no such directory"):
        engine_process._run(settings, io.StringIO())


def test_a_rank_that_is_too_high_is_refused_and_names_the_flag(settings, tmp_path):
    from tests.serving.adapters.small_adapters import matrices, save_peft, tree

    settings["adapters"] = [("sql", save_peft(tmp_path, tree(matrices(0, rank=4)), r=4))]
    settings["engine"]["max_lora_rank"] = 2
    with pytest.raises(ValueError, match=r"'sql': .* has rank 4, above --max-lora-rank=2; raise"):
        engine_process._run(settings, io.StringIO())
