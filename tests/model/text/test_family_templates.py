"""Chat templates in the manner of model families render as in transformers, and add one BOS."""

import json

import jinja2
import pytest

from jaxinfer.model.text.tokenizer import Tokenizer
from tests.lazy import transformers
from tests.model.text.family_templates import TEMPLATES
from tests.model.text.small_sentence_pieces import build_pieces

USER = {"role": "user", "content": " What is 1 < 2 & 'three'?\n"}
SYSTEM = {"role": "system", "content": "Be brief. /no_think"}
ASSISTANT = {"role": "assistant", "content": "\nYes. 你好 "}
FUNCTION = {"name": "add", "arguments": {"a": "<é>", "b": 2}}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "id": "abcdefghi", "function": FUNCTION}],
}
RESULT = {"role": "tool", "content": "3", "name": "add"}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds & <b>", "é": {"x": 1}}}
CONVERSATIONS = [
    ([USER], {}),
    ([SYSTEM, USER], {}),
    ([SYSTEM, USER, ASSISTANT, USER], {}),
    ([USER, ASSISTANT], {"add_generation_prompt": False}),
    ([USER, ASSISTANT], {"add_generation_prompt": False, "continue_final_message": True}),
    ([SYSTEM, USER], {"tools": [TOOL, TOOL]}),
    ([USER, CALL, RESULT], {"tools": [TOOL]}),
    ([USER, CALL, RESULT, RESULT], {"enable_thinking": False}),
    ([USER, {**CALL, "tool_calls": CALL["tool_calls"] * 2}], {}),
    ([USER, USER], {"date_string": "1 May 2025"}),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Our tokenizer and transformers', of a directory without a template."""
    directory = tmp_path_factory.mktemp("pieces")
    build_pieces("mistral").save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | kind))
    tokenizer = Tokenizer.from_directory(directory)
    yield tokenizer, transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.close()


def rendered(tokenizer, *arguments, **options) -> tuple[str | None, str | None]:
    """The text, or the end of the error of a template that refuses."""
    try:
        return tokenizer.apply_chat_template(*arguments, **options), None
    except ValueError as error:
        return None, str(error).removeprefix("chat template of the caller: ")
    except jinja2.TemplateError as error:
        return None, str(error)


@pytest.mark.parametrize("family", TEMPLATES)
def test_renders_what_transformers_renders(both, family):
    ours, theirs = both
    refusals = []
    for messages, given in CONVERSATIONS:
        options = {"add_generation_prompt": True, "chat_template": TEMPLATES[family], **given}
        expected = rendered(theirs, messages, tokenize=False, **options)
        assert rendered(ours, messages, **options) == expected
        refusals.append(expected[1])
    assert refusals.count(None) >= len(CONVERSATIONS) // 2


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_template_that_writes_the_first_token_has_it_once(both, family):
    ours, theirs = both
    options = {"add_generation_prompt": True, "chat_template": TEMPLATES[family]}
    ids = ours.apply_chat_template([USER], tokenize=True, **options)
    expected = theirs.apply_chat_template([USER], tokenize=True, return_dict=False, **options)
    first = ours.token_to_id("<s>")
    assert ids == expected
    assert ids.count(first) == TEMPLATES[family].count("{{ bos_token }}") + TEMPLATES[family].count(
        "{{- bos_token }}"
    )
    assert ours.encode("What")[0] == first  # of a plain text, the file's post-processor adds it
