"""A profile of an engine is a recording in a directory, and one line if it can't be."""

import asyncio

import pytest

from tests.serving.small_llm import (
    GREEDY,
    PROMPTS,
    small_async_llm,
    small_llm,
)


def test_a_recording_holds_what_ran(llm, tmp_path):
    llm.start_profile(tmp_path / "profile")
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    with pytest.raises(RuntimeError, match=r"being recorded to .*; call stop_profile\(\) first"):
        llm.start_profile(tmp_path)
    llm.stop_profile()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    with pytest.raises(RuntimeError, match=r"no profile is being recorded; call start_profile"):
        llm.stop_profile()


def test_a_directory_that_cannot_be_written_is_one_line(llm, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match=r"^can't write a profile to .*/file/below: [\w ]+$"):
        llm.start_profile(file / "below")
    with pytest.raises(TypeError, match="needs a directory"):
        llm.start_profile(None)


def test_closing_an_engine_ends_its_recording(llm, tmp_path):
    with small_llm() as other:
        other.start_profile(tmp_path / "other")
        with pytest.raises(RuntimeError, match="no profile can be recorded now: "):
            llm.start_profile(tmp_path / "own")
    assert list((tmp_path / "other").rglob("*.xplane.pb"))


def test_an_asynchronous_engine_records_too(tmp_path):
    async def main():
        async with small_async_llm() as engine:
            await engine.start_profile(tmp_path)
            await engine.stop_profile()

    asyncio.run(main())
    assert list(tmp_path.rglob("*.xplane.pb"))
