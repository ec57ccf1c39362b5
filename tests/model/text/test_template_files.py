"""A model's templates are those that transformers finds, and a damaged file is one line."""

import json

import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.text.template_files import read_templates
from jaxinfer.model.text.tokenizer import Tokenizer
from tests.lazy import transformers
from tests.model.text.small_tokenizer import write_tokenizer

LIST = [{"name": "default", "template": "d of list"}, {"name": "rag", "template": "r of list"}]


def write(directory, settings=None, **templates):
    """A model directory with these templates and no other."""
    write_tokenizer(directory)
    (directory / "chat_template.jinja").unlink()
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": settings}))
    for name, text in templates.items():
        place = directory / "additional_chat_templates" / f"{name}.jinja"
        if name == "default":
            place = directory / "chat_template.jinja"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    return directory


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        (None, {}),
        ("one", {}),
        (LIST, {}),
        (None, {"default": "d"}),
        ("one", {"default": "d"}),
        (LIST, {"default": "d"}),
        (None, {"default": "d", "tool_use": "t", "a b": "x"}),
        (LIST, {"default": "d", "tool_use": "t"}),
        (None, {"tool_use": "t"}),
    ],
)
def test_templates_are_those_of_transformers(tmp_path, settings, files):
    directory = write(tmp_path, settings, **files)
    theirs = transformers.AutoTokenizer.from_pretrained(directory).chat_template
    expected = {} if theirs is None else {"default": theirs} if isinstance(theirs, str) else theirs
    assert read_templates(directory, {"chat_template": settings}) == expected


def test_the_settings_give_the_default_one_where_the_files_have_none(tmp_path):
    directory = write(tmp_path, "one", tool_use="t")
    assert read_templates(directory, {"chat_template": "one"}) == {
        "default": "one",
        "tool_use": "t",
    }
    tokenizer = Tokenizer.from_directory(directory)
    message = {"role": "user", "content": "hi"}
    assert tokenizer.apply_chat_template([message]) == "one"
    assert tokenizer.apply_chat_template([message], tools=[{"name": "f"}]) == "t"
    tokenizer.close()


@pytest.mark.parametrize(
    "given", [3, [], {}, ["x"], [{"name": "a"}], [{"name": [], "template": "x"}], {"a": 3}]
)
def test_settings_that_are_no_templates_are_named(tmp_path, given):
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: chat_template must be text"):
        read_templates(tmp_path, {"chat_template": given})


def test_damaged_and_too_many_files_are_named(tmp_path):
    directory = write(tmp_path, tool_use="t")
    file = directory / "additional_chat_templates" / "tool_use.jinja"
    file.write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match=r"tool_use\.jinja: not UTF-8 text"):
        read_templates(directory, {})
    file.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(ModelLoadError, match=r"tool_use\.jinja: larger than 1 MiB"):
        read_templates(directory, {})
    for i in range(100):
        (file.parent / f"{i}.jinja").touch()
    with pytest.raises(ModelLoadError, match="more than 100 templates"):
        read_templates(directory, {})
