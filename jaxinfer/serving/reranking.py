"""Relevance of documents to a query, as the Qwen3-Reranker models were trained to judge it.

The prompt asks for "yes" or "no"; the score is the probability of "yes" against "no". The document
is the last part that differs, so that the prefix cache has all before it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxinfer.checks import MAX_INT32, check_integer
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.reranking import RankedDocument
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.prompts import PromptReader
from jaxinfer.serving.token_logits import PromptLogits

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The instruction that the models' authors use where there is no other."""

ANSWERS = ("yes", "no")

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


def read_questions(
    query: Any, documents: Any, instruction: Any, reader: PromptReader
) -> list[Question]:
    """The prompts of a call; documents are cut so that each fits the model's length.

    Args:
        query: a text.
        documents: a list of texts.
        instruction: what makes a document relevant; None is `DEFAULT_INSTRUCTION`.
        reader: checks texts and lengths.

    Raises:
        TypeError: something is no text; names it.
        ValueError: there is no tokenizer or it lacks the template's tokens, a text is not valid
            Unicode, or query and instruction leave no room for a document.
    """
    instruction = DEFAULT_INSTRUCTION if instruction is None else instruction
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        kind = type(documents).__name__
        raise TypeError(f"documents must be a list of strings, got {kind}")
    texts = list(documents)
    tokenizer = _tokenizer(reader)
    named = {f"documents[{i}]": text for i, text in enumerate(texts)}
    for name, text in {"query": query, "instruction": instruction, **named}.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a string, got {type(text).__name__}")
        reader.check_text(name, text, num_outputs=0, may_be_longer=name in named)
    begin = f"{_BEGIN}<Instruct>: {instruction}\n<Query>: {query}\n<Document>:"
    end = tokenizer.encode(_END, add_special_tokens=False)
    num_fixed = len(tokenizer.encode(begin, add_special_tokens=False)) + len(end)
    if num_fixed >= reader.max_model_len:
        raise ValueError(
            f"instruction and query make {num_fixed} tokens without a document, and max_model_len "
            f"is {reader.max_model_len}; shorten them or raise max_model_len"
        )
    room = reader.max_model_len - len(end)
    encoded = tokenizer.encode_batch(
        [f"{begin} {text}" for text in texts], add_special_tokens=False
    )
    questions = []
    for name, text, ids in zip(named, texts, encoded, strict=True):
        prompt = reader.check_token_ids(name, [*ids[:room], *end], num_outputs=0)
        questions.append(Question(text, prompt, max(0, len(ids) - room)))
    return questions


def ranked(
    questions: Sequence[Question], found: Sequence[PromptLogits], top_n: int | None
) -> list[RankedDocument]:
    """Documents by falling score, equal ones in the order that they were given in.

    Args:
        questions: of the documents.
        found: logits of `ANSWERS` after each.
        top_n: how many to return; None is all.
    """
    documents = [
        RankedDocument(
            index=i,
            document=question.document,
            relevance_score=_score(*logits.logits.tolist()),
            num_tokens=len(question.prompt.token_ids),
            num_truncated_tokens=question.num_truncated_tokens,
            num_cached_tokens=logits.output.num_cached_tokens,
        )
        for i, (question, logits) in enumerate(zip(questions, found, strict=True))
    ]
    documents.sort(key=lambda document: -document.relevance_score)
    return documents[:top_n]


def check_top_n(given: Any) -> int | None:
    """`top_n` of a call; raises TypeError or ValueError unless it is None or at least 1."""
    return None if given is None else check_integer("top_n", given, 1, MAX_INT32)


def _score(yes: float, no: float) -> float:
    """The sigmoid of the logits' difference, without an overflow."""
    difference = yes - no
    small = math.exp(-abs(difference))
    return (1.0 if difference >= 0 else small) / (1.0 + small)


def _tokenizer(reader: PromptReader) -> Tokenizer:
    if (tokenizer := reader.tokenizer) is None:
        raise ValueError("rerank() takes texts, and this engine has no tokenizer; give it one")
    for text in _SPECIAL:
        if tokenizer.token_to_id(text) is None:
            raise ValueError(
                f"rerank() is for Qwen3-Reranker models, and this tokenizer has no token {text!r}"
            )
    return tokenizer
