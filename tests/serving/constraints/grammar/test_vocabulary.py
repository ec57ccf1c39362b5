"""Text that spells an added token is letters to a grammar; the token itself must be named."""

import json

import numpy as np
import pytest

from jaxinfer import StructuredOutputsParams
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.constraints.grammar.compiler import GrammarCompiler
from tests.model.text.small_sentence_pieces import FORMS, build_pieces
from tests.serving.constraints.grammar.grammars import allowed_ids, bundled_tokenizer, matcher

SPELLINGS = ["<think>", "</think>", "<tool_call>", "<|im_end|>", "<|endoftext|>"]
ADDED = {bundled_tokenizer().token_to_id(text) for text in SPELLINGS}
ENDS = set(bundled_tokenizer().eos_token_ids)


def answer(follower):
    """The tokens of a grammar's only answer, forced or under masks, without the one that ends."""
    tokens = []
    while True:
        forced = follower.forced_tokens()
        allowed = set(allowed_ids(follower).tolist())
        if not forced and allowed == ENDS:
            return tokens
        assert not ADDED & allowed
        tokens += forced or [max(allowed - ENDS)]
        follower.follow(tokens)


def forced(follower, *tokens):
    """Tokens that an answer begins with, and all that are forced behind them."""
    tokens = list(tokens)
    follower.follow(tokens)
    while new := follower.forced_tokens():
        tokens += new
        follower.follow(tokens)
    return tokens


@pytest.mark.parametrize("text", [f"{a}{s}{b}" for s in SPELLINGS for a, b in ("  ", "ab")])
@pytest.mark.parametrize("kind", ["choice", "json", "regex", "grammar"])
def test_text_that_spells_an_added_token_is_its_letters(kind, text):
    given = {
        "choice": [text],
        "json": {"enum": [text]},
        "regex": text.replace("|", r"\|"),
        "grammar": f"start: {json.dumps(text)}",
    }
    follower = matcher(**{kind: given[kind]})
    tokens = answer(follower)
    expected = json.dumps(text) if kind == "json" else text
    assert bundled_tokenizer().decode(tokens) == expected
    assert follower.state.is_accepting()


@pytest.mark.parametrize("text", SPELLINGS)
def test_the_text_of_a_structural_tag_is_letters(text):
    tag = {"begin": "$", "schema": {"const": text}, "end": text + "."}
    follower = matcher(structural_tag={"triggers": ["$"], "structures": [tag]})
    tokens = forced(follower, *bundled_tokenizer().encode("$"))
    assert bundled_tokenizer().decode(tokens).startswith(f"${json.dumps(text)}{text}")
    assert not ADDED & set(tokens)


def test_an_added_token_comes_where_a_grammar_names_it():
    opening, *letters, closing = forced(matcher(grammar='start: <think> "<think>" </think>'))
    tags = [bundled_tokenizer().token_to_id(tag) for tag in ("<think>", "</think>")]
    assert [opening, closing] == tags
    assert not ADDED & set(letters)


def test_text_has_the_tokens_that_it_has_elsewhere():
    text = "It is 31 degrees, naïve 東京."
    assert answer(matcher(choice=[text])) == bundled_tokenizer().encode(text)


def test_ids_beyond_the_tokenizer_are_never_allowed():
    allowed = allowed_ids(matcher(regex="(.|\n)*"))
    assert np.max(allowed) < bundled_tokenizer().vocab_size


@pytest.mark.parametrize("form", FORMS)
def test_forced_text_in_sentence_pieces_has_no_space_before_it(form):
    """A prompt precedes it: `fox` is its own token there, not the one with a space."""
    tokenizer = Tokenizer(build_pieces(form))
    (end,) = tokenizer.encode_following(["</s>"])[0]
    grammars = GrammarCompiler(tokenizer, tokenizer.vocab_size, [end])
    for text in ("fox 한국\n", " fox", '{"fox": "the fox"}'):
        follower = grammars.get(StructuredOutputsParams(choice=[text])).matcher()
        tokens = follower.forced_tokens()
        assert tokens == tokenizer.encode_following([text])[0]
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
        follower.follow(tokens)
        assert allowed_ids(follower).tolist() == [end]
