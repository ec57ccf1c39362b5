"""Outputs of reranking and of scores of pairs: how relevant one text is to another."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document with its relevance to a query.

    Attributes:
        index: of the document in the list that was given.
        document: its whole text.
        relevance_score: probability of "yes" against "no", 0 to 1; or of a classifying head.
        num_tokens: tokens of the prompt that holds query and document.
        num_truncated_tokens: tokens at the document's end that did not fit and were not read.
        num_cached_tokens: tokens that were not computed, as of `RequestOutput`.
    """

    index: int
    document: str
    relevance_score: float
    num_tokens: int
    num_truncated_tokens: int = 0
    num_cached_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PairScore:
    """How relevant a text is to another, or how similar the two are.

    Attributes:
        score: of a reranker, the probability of "yes" against "no", 0 to 1; of an embedding model,
            the cosine of the two vectors, -1 to 1.
        num_tokens: tokens of the prompts that were read for it.
    """

    score: float
    num_tokens: int
