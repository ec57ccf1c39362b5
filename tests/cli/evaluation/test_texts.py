"""Files become windows of token ids; a mistake names its file and line."""

import io
import json

import pytest
import tokenizers

from jaxinfer.cli.evaluation.texts import read_windows
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_directory(BUNDLED_MODEL)
STORY = "Once upon a time, there was a wise whale.\n\nIt lived in a tower, and it was happy."
NUMBER = len(TOKENIZER.encode(STORY))


def read(*files, max_tokens=512, most=None, tokenizer=TOKENIZER, reference=None):
    return read_windows(list(map(str, files)), tokenizer, reference or tokenizer, max_tokens, most)


def _with_bos():
    backend = tokenizers.Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 2039)]
    )
    return Tokenizer(backend)


def _file(tmp_path, text, name="story.txt"):
    file = tmp_path / name
    file.write_text(text)
    return file


def test_a_file_is_one_text(tmp_path):
    file = _file(tmp_path, STORY)
    (window,) = read(file)
    assert window.token_ids == tuple(TOKENIZER.encode(STORY))
    assert (window.where, window.first) == (str(file), 0)
    assert window.start == STORY[:48]
    assert window.position(3) == 3


@pytest.mark.parametrize("max_tokens", [2, 7, NUMBER - 1, NUMBER])
def test_windows_hold_every_token_but_a_last_single_one(tmp_path, max_tokens):
    windows = read(_file(tmp_path, STORY), max_tokens=max_tokens)
    ids = [token_id for window in windows for token_id in window.token_ids]
    single = NUMBER % max_tokens == 1
    assert ids == TOKENIZER.encode(STORY)[: NUMBER - single]
    assert [window.first for window in windows] == list(range(0, len(ids), max_tokens))
    assert windows[-1].position(1) == windows[-1].first + 1


def test_a_token_before_every_text_stands_before_every_window(tmp_path):
    tokenizer = _with_bos()
    bos, *ids = tokenizer.encode(STORY)
    first, second, *_ = read(_file(tmp_path, STORY), max_tokens=8, tokenizer=tokenizer)
    assert first.token_ids == (bos, *ids[:7])
    assert second.token_ids == (bos, *ids[7:14])
    assert (second.first, second.position(1)) == (8, 8)
    assert first.position(1) == 1


def test_json_lines_are_a_text_each_and_may_hold_more(tmp_path):
    lines = [{"text": "Once upon", "id": 3}, "a time\u2028there", {"prompt": "was a whale"}]
    file = _file(tmp_path, "\n\n".join(map(json.dumps, lines)), "texts.jsonl")
    windows = read(file, file)
    assert [window.start for window in windows[:3]] == ["Once upon", lines[1], "was a whale"]
    assert [window.where for window in windows[:3]] == [f"{file}:{n}" for n in (1, 3, 5)]
    assert windows[3:] == windows[:3]


def test_the_first_windows_are_read_and_no_others(tmp_path):
    file = _file(tmp_path, '"Once upon a time"\nnot JSON', "texts.jsonl")
    assert len(read(file, most=1)) == 1
    assert [w.first for w in read(_file(tmp_path, STORY), max_tokens=4, most=2)] == [0, 4]


def test_standard_input_is_a_text(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(STORY))
    (window,) = read("-")
    assert (window.where, len(window.token_ids)) == ("standard input", NUMBER)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.txt", "", "a.txt: holds no text"),
        ("a.txt", " \n", "a.txt: holds no text"),
        ("a.txt", "a", "a.txt: has fewer than two tokens"),
        ("a.jsonl", "\n", "a.jsonl: holds no text"),
        ("a.jsonl", '"Once upon a time"\n"a"', "a.jsonl:2: has fewer than two tokens"),
        ("a.jsonl", '"Once upon a time"\n\n""', "a.jsonl:3: expected a text"),
        ("a.jsonl", '{"x": 1}', "a.jsonl:1: expected a text"),
        ("a.jsonl", '{"text": 1}', "a.jsonl:1: expected a text"),
        ("a.jsonl", "{", "a.jsonl:1: not JSON"),
        ("a.jsonl", '"\\ud800 and"', "a.jsonl:1: not UTF-8 text"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, name, text, named):
    with pytest.raises(ValueError, match=named):
        read(_file(tmp_path, text, name))


def test_a_file_that_can_not_be_read_is_named(tmp_path):
    (tmp_path / "bytes").write_bytes(b"ab\n\xff")
    for name, named in {
        "gone": "--text .*gone: No such file or directory; give a file of text",
        "": "--text .*: Is a directory; give a file of text",
        "bytes": r"bytes:2: not UTF-8 text \(byte 0xff\)",
    }.items():
        with pytest.raises(ValueError, match=named):
            read(tmp_path / name)


def test_another_tokenizer_is_refused_with_the_text_that_shows_it(tmp_path):
    with pytest.raises(ValueError, match=r"story\.txt: the two models' tokenizers make other"):
        read(_file(tmp_path, STORY), reference=_with_bos())
