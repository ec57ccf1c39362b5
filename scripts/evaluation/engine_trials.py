"""Puts the held-out questions to an engine, all in one batch, greedily."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scripts.evaluation.items.mixture import held_out_items
from scripts.evaluation.rates import Question, Trial

if TYPE_CHECKING:
    from jaxinfer import LLM
    from jaxinfer.model.text.tokenizer import Tokenizer

MAX_REPLY_TOKENS = 128
"""A reply of the kinds asked for needs at most about 60."""


def run_trials(
    llm: "LLM",
    asked: Sequence[Question],
    *,
    max_tokens: int = MAX_REPLY_TOKENS,
    use_tqdm: bool = False,
) -> list[Trial]:
    """Ask every question; the replies in the order asked.

    Args:
      llm: the engine, with a tokenizer that has a chat template.
      asked: the questions.
      max_tokens: a reply that is longer is cut and counts as not ended.
      use_tqdm: show a progress bar.

    Raises:
      ValueError: the engine has no tokenizer, or a prompt does not fit into `max_model_len`.
      RuntimeError: the engine failed on a question.
    """
    from jaxinfer import SamplingParams

    tokenizer = _tokenizer_of(llm)
    prompts: list[Any] = [{"prompt_token_ids": _prompt(tokenizer, question)} for question in asked]
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    trials = []
    for question, output in zip(asked, llm.generate(prompts, greedy, use_tqdm), strict=True):
        if output.error is not None:
            raise RuntimeError(f"the engine failed on a question: {output.error}")
        completion = output.outputs[0]
        trials.append(Trial(question, completion.text, completion.finish_reason == "stop"))
    return trials


def story_loss(llm: "LLM", count: int, seed: int = 0) -> float:
    """Mean negative log-likelihood of held-out stories, in nats a token.

    Finer than any rate: it moves when rounding changes a logit, long before an answer does.

    Raises:
      ValueError: the engine has no tokenizer, or a story does not fit into `max_model_len`.
    """
    _tokenizer_of(llm)
    scores = llm.score([item.answer for item in held_out_items("story", count, seed)])
    tokens = sum(len(score.token_ids) - score.start for score in scores)
    return -sum(score.logprob for score in scores) / tokens


def _prompt(tokenizer: "Tokenizer", question: Question) -> list[int]:
    text = tokenizer.apply_chat_template(
        question.item.messages,
        tools=question.item.tools or None,
        enable_thinking=question.thinking,
    )
    return tokenizer.encode(text, add_special_tokens=False)


def _tokenizer_of(llm: "LLM") -> "Tokenizer":
    if llm.tokenizer is None:
        raise ValueError("evaluation needs a tokenizer; this engine has none")
    return llm.tokenizer
