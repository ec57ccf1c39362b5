"""The benchmark of grammars: its corpus has answers, its tokenizer has a size, and it runs."""

import json

import jsonschema
import pytest

from jaxinfer import StructuredOutputsParams
from scripts import structured_outputs_benchmark
from scripts.structured_outputs.corpus import CORPUS, endless
from scripts.structured_outputs.vocabulary import synthetic_tokenizer
from tests.serving.constraints.grammar.grammars import (
    bundled_tokenizer,
    random_answer,
    shared_compiler,
)


@pytest.mark.parametrize("schema", CORPUS, ids=lambda schema: next(iter(schema["properties"])))
def test_the_corpus_has_answers_that_end(schema):
    grammar = shared_compiler().get(StructuredOutputsParams(json=schema))
    tokens = random_answer(grammar.matcher(), 1)
    assert tokens is not None
    jsonschema.validate(json.loads(bundled_tokenizer().decode(tokens)), schema)
    assert shared_compiler().get(StructuredOutputsParams(json=endless(schema)))


def test_a_synthetic_tokenizer_has_every_id_and_ends_with_the_last():
    tokenizer = synthetic_tokenizer(600)
    assert (tokenizer.vocab_size, tokenizer.eos_token_ids) == (600, (599,))
    assert tokenizer.decode(tokenizer.encode('{"a": 1}')) == '{"a": 1}'


@pytest.mark.slow  # fourteen cases of the bundled model
def test_the_benchmark_keeps_a_record_and_prints_a_table(tmp_path, capsys):
    sizes = ["--rows", "2", "--output-len", "24", "--repeats", "1", "--no-compile-ahead"]
    arguments = [*sizes, "--output-directory", str(tmp_path)]
    assert structured_outputs_benchmark.main(arguments) == 0
    (path,) = tmp_path.glob("*-structured-outputs-bundled.json")
    record = json.loads(path.read_text())
    assert record["kind"] == "structured-outputs-bundled"
    assert record["cases"]["plain"]["grammar_ms"] is None
    assert record["cases"]["records, masks only"]["grammar_ms"] > 0
    assert all(case["tokens_per_s"] > 0 for case in record["cases"].values())
    assert record["ratios"]["tokens/s, one alone / masks only"] > 1
    assert "beside masks" in capsys.readouterr().out
