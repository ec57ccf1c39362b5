"""Relevance of documents to a query, as the Qwen3-Reranker models were trained to judge it.

The prompt asks for "yes" or "no"; the score is the probability of "yes" against "no", which files
that were converted to a classifying head have in one row. The document is the last part that
differs, so that the prefix cache has all before it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxinfer.checks import MAX_INT32, check_integer
from jaxinfer.model.score_head import ScoreHead
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.reranking import PairScore, RankedDocument
from jaxinfer.serving.pooling.classification import check_scores, relevance
from jaxinfer.serving.pooling.decisions import read_labels
from jaxinfer.serving.pooling.task import PoolingTask
from jaxinfer.serving.pooling.token_logits import PromptLogits, prompt_logits
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The instruction that the models' authors use where there is no other."""

_ANSWERS = ("yes", "no")

_BEGIN = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_END = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """The prompt of one document.

    Attributes:
        document: its whole text.
        prompt: query and document in the models' template.
        num_truncated_tokens: tokens at the document's end that are not in the prompt.
    """

    document: str
    prompt: Prompt
    num_truncated_tokens: int


def rerank_task(
    query: Any,
    documents: Any,
    instruction: Any,
    top_n: Any,
    reader: PromptReader,
    classifier: ScoreHead | None,
) -> PoolingTask[list[RankedDocument]]:
    """The task of a call of `rerank`.

    Args:
        query: a text.
        documents: a list of texts.
        instruction: what makes a document relevant; None is `DEFAULT_INSTRUCTION`.
        top_n: how many documents to return; None is all.
        reader: checks texts and lengths.
        classifier: the model's classifying head; None of a language model.

    Raises:
        TypeError: something is no text, or `top_n` no integer; names it.
        ValueError: as of `read_questions`, `top_n` is below 1, or the head has several classes.
    """
    most = None if top_n is None else check_integer("top_n", top_n, 1, MAX_INT32)
    named = named_texts("documents", documents)
    pairs = [("query", name) for name in named]
    questions = read_questions({"query": query}, named, pairs, instruction, reader)

    def answer(outputs: Sequence[RequestOutput], scores: list[float]) -> list[RankedDocument]:
        return _ranked(questions, outputs, scores, most)

    return _task(questions, reader, classifier, answer)


def relevance_task(
    queries: Mapping[str, Any],
    documents: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    instruction: Any,
    reader: PromptReader,
    classifier: ScoreHead | None,
) -> PoolingTask[list[PairScore]]:
    """The task of scoring pairs of a query and a document.

    Arguments are those of `read_questions`, and the classifying head as of `rerank_task`.

    Raises:
        TypeError, ValueError: as of `read_questions`; or the head has several classes.
    """
    questions = read_questions(queries, documents, pairs, instruction, reader)

    def answer(outputs: Sequence[RequestOutput], scores: list[float]) -> list[PairScore]:
        return [
            PairScore(score, len(output.prompt_token_ids))
            for output, score in zip(outputs, scores, strict=True)
        ]

    return _task(questions, reader, classifier, answer)


def named_texts(name: str, given: Any) -> dict[str, Any]:
    """A list of texts, not checked yet, each under its name for errors.

    Raises:
        TypeError: it is no list.
    """
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a list of strings, got {type(given).__name__}")
    return {f"{name}[{i}]": text for i, text in enumerate(given)}


def read_questions(
    queries: Mapping[str, Any],
    documents: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    instruction: Any,
    reader: PromptReader,
) -> list[Question]:
    """The prompts of a call; documents are cut so that each fits the model's length.

    Args:
        queries: texts by their names for errors.
        documents: texts by their names for errors.
        pairs: the names of a query and a document for each prompt.
        instruction: what makes a document relevant; None is `DEFAULT_INSTRUCTION`.
        reader: checks texts and lengths.

    Raises:
        TypeError: something is no text; names it.
        ValueError: there is no tokenizer or it lacks the template's tokens, a text is not valid
            Unicode, or query and instruction leave no room for a document.
    """
    instruction = DEFAULT_INSTRUCTION if instruction is None else instruction
    tokenizer = _tokenizer(reader)
    for name, text in {**queries, "instruction": instruction, **documents}.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string, got {type(text).__name__}")
        reader.check_text(name, text, num_outputs=0, may_be_longer=name in documents)
    end = tokenizer.encode(_END, add_special_tokens=False)
    begins = {
        name: f"{_BEGIN}<Instruct>: {instruction}\n<Query>: {query}\n<Document>:"
        for name, query in queries.items()
    }
    for begin in begins.values():
        num_fixed = len(tokenizer.encode(begin, add_special_tokens=False)) + len(end)
        if num_fixed >= reader.max_model_len:
            raise ValueError(
                f"query and instruction make {num_fixed} tokens without a document, and "
                f"max_model_len is {reader.max_model_len}; shorten them or raise max_model_len"
            )
    room = reader.max_model_len - len(end)
    encoded = tokenizer.encode_batch(
        [f"{begins[query]} {documents[document]}" for query, document in pairs],
        add_special_tokens=False,
    )
    questions = []
    for (_, name), ids in zip(pairs, encoded, strict=True):
        prompt = reader.check_token_ids(name, [*ids[:room], *end], num_outputs=0)
        questions.append(Question(documents[name], prompt, max(0, len(ids) - room)))
    return questions


def _ranked(
    questions: Sequence[Question],
    outputs: Sequence[RequestOutput],
    scores: Sequence[float],
    top_n: int | None,
) -> list[RankedDocument]:
    """Documents by falling score, equal ones in the order that they were given in."""
    documents = [
        RankedDocument(
            index=i,
            document=question.document,
            relevance_score=score,
            num_tokens=len(question.prompt.token_ids),
            num_truncated_tokens=question.num_truncated_tokens,
            num_cached_tokens=output.num_cached_tokens,
        )
        for i, (question, output, score) in enumerate(zip(questions, outputs, scores, strict=True))
    ]
    documents.sort(key=lambda document: -document.relevance_score)
    return documents[:top_n]


def _task[T](
    questions: Sequence[Question],
    reader: PromptReader,
    classifier: ScoreHead | None,
    answer: Callable[[Sequence[RequestOutput], list[float]], T],
) -> PoolingTask[T]:
    """The task whose answer is made of the prompts' outputs and scores."""
    prompts = [question.prompt for question in questions]
    if classifier is None:
        token_ids = tuple(read_labels(_ANSWERS, reader).values())
        return PoolingTask(
            prompts,
            token_ids,
            lambda outputs, head: answer(outputs, [*map(_score, prompt_logits(outputs, head))]),
        )
    check_scores(classifier)
    return PoolingTask(
        prompts,
        (),
        lambda outputs, _: answer(outputs, [relevance(each, classifier) for each in outputs]),
    )


def _score(found: PromptLogits) -> float:
    """The sigmoid of the logits' difference, without an overflow."""
    yes, no = found.logits.tolist()
    small = math.exp(-abs(yes - no))
    return (1.0 if yes >= no else small) / (1.0 + small)


def _tokenizer(reader: PromptReader) -> Tokenizer:
    if (tokenizer := reader.tokenizer) is None:
        raise ValueError("rerank() takes texts, and this engine has no tokenizer; give it one")
    for text in _SPECIAL:
        if tokenizer.token_to_id(text) is None:
            raise ValueError(
                f"rerank() is for Qwen3-Reranker models, and this tokenizer has no token {text!r}"
            )
    return tokenizer
