"""Asking an engine: what is sent, what is read, and what happens when it fails."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxinfer import LLM
from jaxinfer.outputs import CompletionOutput, RequestOutput, ScoreOutput
from scripts.evaluation.engine_trials import run_trials, story_loss
from scripts.evaluation.items.item import Item
from scripts.evaluation.rates import Question

ASKED = [
    Question(Item(kind="chat", key="", messages=({"role": "user", "content": "Hi"},), answer=""), t)
    for t in (False, True)
]


class FakeTokenizer:
    def apply_chat_template(self, messages, *, tools, enable_thinking):
        return f"{messages[0]['content']}|{tools}|{enable_thinking}"

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        return list(text.encode())


def fake_llm(finish_reason: str = "stop", error: str | None = None, **more: Any) -> LLM:
    def generate(prompts, params, use_tqdm):
        assert params.temperature == 0
        texts = [bytes(prompt["prompt_token_ids"]).decode() for prompt in prompts]
        return [
            RequestOutput(
                request_id="",
                prompt=None,
                prompt_token_ids=[],
                outputs=[CompletionOutput(0, text, [], finish_reason=cast(Any, finish_reason))],
                error=error,
            )
            for text in texts
        ]

    fields = {"tokenizer": FakeTokenizer(), "generate": generate} | more
    return cast(LLM, SimpleNamespace(**fields))


def test_prompts_carry_the_thinking_switch_and_no_empty_tools():
    trials = run_trials(fake_llm(), ASKED)
    assert [trial.reply for trial in trials] == ["Hi|None|False", "Hi|None|True"]
    assert all(trial.ended for trial in trials)


def test_a_reply_cut_by_the_limit_has_not_ended():
    assert not any(trial.ended for trial in run_trials(fake_llm("length"), ASKED))


def test_a_failed_question_is_an_error():
    with pytest.raises(RuntimeError, match="failed on a question: NaN"):
        run_trials(fake_llm("error", "NaN"), ASKED)


def test_an_engine_without_tokenizer_is_refused():
    with pytest.raises(ValueError, match="needs a tokenizer"):
        run_trials(fake_llm(tokenizer=None), ASKED)


def test_story_loss_is_the_mean_over_scored_tokens():
    def score(texts):
        assert all(text.startswith(("Once", "Long", "One")) for text in texts)
        return [ScoreOutput([1, 2, 3], [None, -1.0, -2.0], [None, 1, 1], 1) for _ in texts]

    assert story_loss(fake_llm(score=score), 2) == pytest.approx(1.5)
