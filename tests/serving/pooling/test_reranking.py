"""`LLM.rerank`: the prompt of Qwen3-Reranker, cut where a document is too long, and its score."""

import jax
import numpy as np
import pytest

from jaxinfer import forward
from tests.serving.small_llm import CONFIG, small_llm, small_params

QUERY = "What is the capital of China?"
DOCUMENTS = ["The capital of China is Beijing.", "Gravity is a force.", "你好", "A fox."]
LENGTH = 256
# As the models' own page writes it.
PROMPT = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {instruction}
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
WEB = "Given a web search query, retrieve relevant passages that answer the query"
FORWARD = jax.jit(forward, static_argnums=1)


@pytest.fixture(scope="module")
def llm(tokenizer):
    with small_llm(tokenizer=tokenizer, max_model_len=LENGTH) as llm:
        yield llm


def prompt_of(document, instruction=WEB):
    return PROMPT.format(instruction=instruction, query=QUERY, document=document)


def expected_score(tokenizer, token_ids):
    """The softmax of the whole head's logits, restricted to "no" and "yes": its second entry."""
    padded = np.zeros(LENGTH, np.int32)  # one program for all lengths
    padded[: len(token_ids)] = token_ids
    logits = np.asarray(FORWARD(small_params(), CONFIG, padded), np.float64)[len(token_ids) - 1]
    no, yes = (logits[ids[0]] for ids in tokenizer.encode_following(["no", "yes"]))
    return np.exp(yes) / (np.exp(no) + np.exp(yes))


def test_scores_are_those_of_the_whole_head_after_the_models_prompt(llm, tokenizer):
    ranked = llm.rerank(QUERY, DOCUMENTS)
    assert sorted(each.index for each in ranked) == [0, 1, 2, 3]
    scores = [each.relevance_score for each in ranked]
    assert scores == sorted(scores, reverse=True)
    for each in ranked:
        assert each.document == DOCUMENTS[each.index]
        ids = tokenizer.encode(prompt_of(each.document))
        assert (each.num_tokens, each.num_truncated_tokens) == (len(ids), 0)
        assert each.relevance_score == pytest.approx(expected_score(tokenizer, ids), abs=1e-5)


def test_an_instruction_takes_the_place_of_the_usual_one(llm, tokenizer):
    (ranked,) = llm.rerank(QUERY, DOCUMENTS[:1], instruction="Find a fox")
    ids = tokenizer.encode(prompt_of(DOCUMENTS[0], "Find a fox"))
    assert ranked.num_tokens == len(ids)
    assert ranked.relevance_score == pytest.approx(expected_score(tokenizer, ids), abs=1e-5)


def test_a_long_document_loses_its_end_and_the_prompt_keeps_its_own(llm, tokenizer):
    long = "A small red fox lived in the forest. " * 20
    ((document),) = llm.rerank(QUERY, [long])
    whole = tokenizer.encode(prompt_of(long))
    end = tokenizer.encode(PROMPT.partition("{document}")[2])
    cut = [*whole[: LENGTH - len(end)], *end]
    assert (document.num_tokens, document.document) == (LENGTH, long)
    assert document.num_truncated_tokens == len(whole) - LENGTH > 0
    assert document.relevance_score == pytest.approx(expected_score(tokenizer, cut), abs=1e-5)


def test_documents_share_all_that_comes_before_them(llm):
    llm.reset_prefix_cache()
    alone = llm.rerank(QUERY, DOCUMENTS[:1])
    assert alone[0].num_cached_tokens == 0
    again = llm.rerank(QUERY, DOCUMENTS)
    assert min(each.num_cached_tokens for each in again) >= 160
    (same,) = [each for each in again if each.index == 0]
    assert same.relevance_score == pytest.approx(alone[0].relevance_score, abs=1e-6)


def test_the_best_alone_are_returned(llm):
    every = [each.index for each in llm.rerank(QUERY, DOCUMENTS)]
    assert [each.index for each in llm.rerank(QUERY, DOCUMENTS, top_n=2)] == every[:2]
    assert [each.index for each in llm.rerank(QUERY, DOCUMENTS, top_n=9)] == every
    assert llm.rerank(QUERY, []) == []


def test_equal_documents_keep_their_order(llm):
    assert [each.index for each in llm.rerank(QUERY, ["A fox."] * 3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((7, DOCUMENTS), TypeError, "query must be a string, got int"),
        ((QUERY, "text"), TypeError, "documents must be a list of strings, got str"),
        ((QUERY, 7), TypeError, "documents must be a list of strings, got int"),
        ((QUERY, ["a", None]), TypeError, r"documents\[1\] must be a string, got NoneType"),
        ((QUERY, ["a", "\ud800"]), ValueError, r"documents\[1\] is not valid Unicode"),
        (("fox " * 3000, DOCUMENTS), ValueError, "query has 12000 bytes"),
        (("fox " * 90, DOCUMENTS), ValueError, "tokens without a document, and max_model_len"),
    ],
)
def test_what_is_no_question_is_refused(llm, arguments, error, message):
    with pytest.raises(error, match=message):
        llm.rerank(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"top_n": 0}, ValueError, "top_n must be from 1"),
        ({"top_n": True}, TypeError, "top_n must be an integer"),
        ({"instruction": 7}, TypeError, "instruction must be a string, got int"),
    ],
)
def test_options_that_mean_nothing_are_refused(llm, options, error, message):
    with pytest.raises(error, match=message):
        llm.rerank(QUERY, DOCUMENTS, **options)


def test_a_tokenizer_without_the_templates_tokens_is_refused(llm, tokenizer, monkeypatch):
    known = tokenizer.token_to_id
    monkeypatch.setattr(
        type(tokenizer), "token_to_id", lambda self, text: None if "think" in text else known(text)
    )
    with pytest.raises(ValueError, match="no token '<think>'"):
        llm.rerank(QUERY, DOCUMENTS)


def test_an_engine_without_text_is_refused():
    with small_llm() as llm, pytest.raises(ValueError, match=r"rerank\(\) takes texts"):
        llm.rerank(QUERY, DOCUMENTS)
