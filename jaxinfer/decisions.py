"""Outputs of decisions: the probabilities of a few labels after a prompt."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """How a model chooses between labels after a prompt, at temperature 1, or between classes.

    Attributes:
        label: the likeliest; the first of several that are equally likely.
        probabilities: of each label among the labels, in their order; they add up to 1. Of a
            classifier: what its activation makes of each logit, see `Judge.classify`.
        logits: of each label's first token, or of each class, in their order.
        prompt_token_ids: the prompt's tokens.
        num_cached_tokens: prompt tokens that were not computed, as of `RequestOutput`.
        weight_version: how often the weights had been swapped when the prompt was read.
    """

    label: str
    probabilities: dict[str, float]
    logits: dict[str, float]
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    weight_version: int = 0
