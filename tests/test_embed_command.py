"""`jaxinfer embed`: a vector for each line of a file, and one line for every mistake."""

import json

import numpy as np
import pytest

import jaxinfer
from jaxinfer.cli.prompts import read_prompts
from jaxinfer.embed import main
from jaxinfer.outputs import EmbeddingOutput


class FakeEmbedder:
    """Vectors of a text's length and its first character; records calls and arguments."""

    follows = False

    def __init__(self, **arguments):
        self.arguments, self.calls = arguments, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def embed(self, prompts, **options):
        self.calls.append((prompts, options))
        if options["dimensions"] == 99:
            raise ValueError("dimensions must be from 1 to 2, got 99")
        for i, text in enumerate(prompts):
            if len(text) > 20:
                raise ValueError(f"prompts[{i}] has {len(text)} tokens, but max_model_len is 20")
        return [
            EmbeddingOutput([1] * len(text), np.array([len(text), ord(text[0])], np.float32) / 3)
            for text in prompts
        ]


@pytest.fixture
def engines(monkeypatch):
    started = []

    def start(**arguments):
        started.append(FakeEmbedder(**arguments))
        return started[-1]

    monkeypatch.setitem(vars(jaxinfer), "LLM", start)
    return started


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("one\n\nthree\n")
    return file


EXPECTED = np.array([[3, ord("o")], [5, ord("t")]], np.float32) / 3


def refusal(capsys, *arguments):
    assert main([*map(str, arguments)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("jaxinfer embed: error: ")
    assert output.err.count("\n") == 1
    return output.err


def test_an_array_has_a_row_for_each_line(engines, texts, tmp_path, capsys):
    output = tmp_path / "vectors.npy"
    assert main([str(texts), "--output", str(output)]) == 0
    array = np.load(output)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, EXPECTED)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("2 vectors of 2, 8 tokens\n")
    ((prompts, options),) = engines[0].calls
    assert prompts == ["one", "three"]
    assert options == {
        "dimensions": None, "prompt_name": None, "normalize": True, "use_tqdm": True
    }  # fmt: skip


def test_json_lines_keep_ids_and_every_bit(engines, tmp_path, capsys):
    file, output = tmp_path / "texts.jsonl", tmp_path / "vectors.jsonl"
    file.write_text('{"prompt": "one", "id": "a"}\n"three"\n')
    flags = ["--dimensions", "2", "--prompt-name", "query", "--no-normalize", "-q"]
    assert main([str(file), "--output", str(output), *flags]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(each["prompt"], each["id"]) for each in records] == [("one", "a"), ("three", None)]
    vectors = np.array([each["embedding"] for each in records], np.float32)
    np.testing.assert_array_equal(vectors, EXPECTED)
    assert capsys.readouterr().err == ""
    assert engines[0].calls[0][1] == {
        "dimensions": 2, "prompt_name": "query", "normalize": False, "use_tqdm": False
    }  # fmt: skip


def test_a_place_that_is_not_free_is_named_before_an_engine_starts(
    engines, texts, tmp_path, capsys
):
    taken = tmp_path / "taken.npy"
    taken.write_bytes(b"mine")
    assert "taken.npy: exists" in refusal(capsys, texts, "--output", taken)
    assert taken.read_bytes() == b"mine"
    nowhere = tmp_path / "nowhere" / "vectors.npy"
    assert "no such directory" in refusal(capsys, texts, "--output", nowhere)
    with pytest.raises(SystemExit):
        main([str(texts), "--output", str(tmp_path / "vectors.csv")])
    assert "must end in .npy or .jsonl" in capsys.readouterr().err
    assert not engines


def test_mistakes_name_lines_and_flags_and_write_nothing(engines, texts, tmp_path, capsys):
    output = tmp_path / "vectors.npy"
    assert "--dimensions must be from 1 to 2" in refusal(
        capsys, texts, "--output", output, "--dimensions", 99, "-q"
    )
    texts.write_text("short\n" + "long " * 9 + "\n")
    message = refusal(capsys, texts, "--output", output, "-q")
    assert "texts.txt:2 has 45 tokens, but --max-model-len is 20" in message
    sampled = tmp_path / "texts.jsonl"
    sampled.write_text('{"prompt": "a", "temperature": 0.5}\n')
    assert "texts.jsonl:1: temperature has no effect" in refusal(
        capsys, sampled, "--output", output
    )
    assert not output.exists()


@pytest.mark.slow
def test_the_bundled_model_gives_the_vectors_of_the_library(tmp_path, texts):
    output = tmp_path / "vectors.npy"
    assert main([str(texts), "--output", str(output), "-q", "--max-model-len", "64"]) == 0
    with jaxinfer.LLM(show_progress=False, compile_ahead=False, max_model_len=64) as llm:
        expected = llm.embed([line.text for line in read_prompts(None, str(texts))])
    for row, other in zip(np.load(output), expected, strict=True):
        np.testing.assert_allclose(row, other.embedding, rtol=1e-5, atol=1e-6)


def test_its_engine_is_for_pooling_unless_another_is_asked_for(engines, texts, tmp_path):
    for name, flags in {"a": [], "b": ["--runner", "generate"]}.items():
        assert main([str(texts), "--output", str(tmp_path / f"{name}.npy"), "-q", *flags]) == 0
    assert [each.arguments["runner"] for each in engines] == ["pooling", "generate"]
