"""generation_config.json is read as it is, and damage is named."""

import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.generation_config import GenerationConfig, read_optional_json


def read(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    return GenerationConfig.from_directory(tmp_path)


def test_no_file_recommends_nothing(tmp_path):
    config = GenerationConfig.from_directory(tmp_path)
    assert (config.eos_token_ids, config.values) == ((), {})


@pytest.mark.parametrize(
    ("value", "expected"), [("3", (3,)), ("[3, 4]", (3, 4)), ("null", ()), ("[]", ())]
)
def test_end_of_sequence_is_one_id_or_several(tmp_path, value, expected):
    assert read(tmp_path, f'{{"eos_token_id": {value}}}').eos_token_ids == expected


@pytest.mark.parametrize("value", ["true", '"3"', "-1", "[1.5]", "[null]", "{}"])
def test_what_is_no_token_id_is_named(tmp_path, value):
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: eos_token_id"):
        read(tmp_path, f'{{"eos_token_id": {value}}}')


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\x00", "<html></html>"])
def test_what_is_no_json_object_is_named(tmp_path, text):
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: "):
        read(tmp_path, text)


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxinfer.model.generation_config._MAX_JSON_BYTES", 10)
    (tmp_path / "x.json").write_text('{"a": "bcdefgh"}')
    with pytest.raises(ModelLoadError, match=r"x\.json: larger than"):
        read_optional_json(tmp_path, "x.json")
