"""Grammars are compiled within limits, elsewhere, once; what can't be is one request's error."""

import builtins
import gc
import sys
import threading

import psutil
import pytest

from jaxinfer import MissingPackageError, StructuredOutputsParams
from jaxinfer.serving.constraints.grammar import backend
from tests.serving.constraints.grammar.grammars import bundled_tokenizer, compiler, shared_compiler


def compiled(own, given, seconds):
    """A grammar that other threads compile."""
    if (outcome := own.start_all([given])) is not None:
        outcome.result(seconds)
    return own.get(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"json": {"type": "something"}}, "Invalid type: something"),
        ({"json": {"type": "string", "pattern": "("}}, "unclosed group"),
        ({"json": {"type": "array", "uniqueItems": True}}, "'uniqueItems' can't be enforced"),
        ({"json": {"not": {}}}, "'not' can't be enforced"),
        (
            {"json": {"properties": {"a": {"maxlength": 3}}}},
            "properties.a: 'maxlength' is no keyword",
        ),
        ({"json": {"$ref": "http://localhost/x.json"}}, "is not present in a registry"),
        ({"json": {"$ref": "#"}}, "no text matches it, because it refers only to itself"),
        ({"json": {"x-guidance": {"lenient": True}}}, "no keyword of JSON schemas"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "Unsatisfiable schema"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"grammar": "start: start"}, "no text matches it"),
        ({"grammar": "root ::= foo"}, "not GBNF"),
        ({"grammar": "root ::= " + "a" * 20_000}, "at most 16384 are translated"),
        ({"structural_tag": {"triggers": ["<"]}}, 'needs "structures"'),
        (
            {"structural_tag": {"triggers": ["<f"], "structures": [{"begin": "[", "schema": {}}]}},
            "starts with none of the triggers",
        ),
    ],
)
def test_what_is_no_grammar_names_its_field_and_its_cause(given, message):
    with pytest.raises(ValueError, match=rf"^structured_outputs\.{next(iter(given))}.*{message}"):
        compiled(shared_compiler(), StructuredOutputsParams(**given), 10)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"regex": "(((a{1,100}){1,100}){1,100}){1,100}b"}, None),
        ({"json": '{"type":"array","items":' * 300 + "{}" + "}" * 300}, "recursion limit exceeded"),
        ({"json": {"enum": [f"value{i}" for i in range(18_000)]}}, None),
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "too deeply nested"),
        ({"grammar": " \n" * 100_000 + 'start: "a"'}, None),
    ],
    ids=["regex", "nested", "enum", "parentheses", "spaces"],
)
def test_hostile_grammars_come_to_an_end(given, refusal):
    outcome = compiler(deadline_s=600).start_all([StructuredOutputsParams(**given)])
    error = outcome.exception(timeout=600)
    if refusal is None:
        assert error is None
    else:
        assert isinstance(error, ValueError)
        assert refusal in str(error)


def test_a_grammar_is_compiled_once_and_elsewhere():
    own = compiler()
    given = StructuredOutputsParams(regex="a+")
    assert own.cache.get(given) is None
    first = compiled(own, given, 10)
    assert own.cache.get(given) is first
    assert own.start_all([given, None]) is None
    assert own.get(StructuredOutputsParams(regex="a+")) is first
    own.close()


def test_a_deadline_refuses_and_later_requests_go_on(monkeypatch):
    own, may_go_on = compiler(deadline_s=0.05), threading.Event()
    compile_grammar = own._compile
    monkeypatch.setattr(
        own, "_compile", lambda given: may_go_on.wait(10) and compile_grammar(given)
    )
    with pytest.raises(ValueError, match=r"not compiled within 0\.05 s"):
        compiled(own, StructuredOutputsParams(regex="a"), 5)
    may_go_on.set()
    monkeypatch.undo()
    assert own.get(StructuredOutputsParams(regex="b")).matcher().forced_tokens() != []


def test_a_missing_library_is_one_clear_error(monkeypatch):
    backend.llguidance.cache_clear()
    monkeypatch.setitem(sys.modules, "llguidance", None)  # as if it were not installed
    with pytest.raises(MissingPackageError, match=r"pip install 'jaxinfer\[guided\]'") as caught:
        compiler().get(StructuredOutputsParams(regex="a"))
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "llguidance"
    monkeypatch.undo()
    assert builtins.__import__("llguidance") is backend.llguidance()


def test_a_model_that_can_not_end_is_refused():
    own = type(shared_compiler())(bundled_tokenizer(), 3000, ())
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        own.get(StructuredOutputsParams(regex="a"))


def _compile_distinct(own, count):
    for i in range(count):
        schema = {"type": "object", "properties": {f"key{i}": {"type": "integer"}}}
        own.get(StructuredOutputsParams(json=schema))
        assert own.cache.num_bytes <= 1 << 23
    gc.collect()
    return psutil.Process().memory_info().rss


def _check_memory_stays_flat(count):
    own = compiler(cache_bytes=1 << 23)
    before = _compile_distinct(own, count // 4)
    assert _compile_distinct(own, count) - before < 24 << 20
    assert 40 <= len(own.cache) <= 64


def test_two_thousand_grammars_take_no_more_memory_than_the_cache():
    _check_memory_stays_flat(2000)


@pytest.mark.exhaustive
def test_ten_thousand_grammars_take_no_more_memory_than_the_cache():
    _check_memory_stays_flat(10_000)


def test_what_was_used_least_recently_is_dropped_first():
    own = compiler(cache_bytes=3 << 17 | 1 << 16)
    grammars = [StructuredOutputsParams(regex=text) for text in "abcd"]
    for given in [*grammars[:3], grammars[0], grammars[3]]:
        own.get(given)
    assert [bool(own.cache.get(given)) for given in grammars] == [True, False, True, True]
