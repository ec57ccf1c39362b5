"""The questions of an evaluation and its rates of right answers, with the bundled model's bars."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scripts.evaluation import grading
from scripts.evaluation.items.item import Item
from scripts.evaluation.items.mixture import held_out_items

ASKED: tuple[tuple[str, bool], ...] = (
    ("sum", False),
    ("sum", True),
    ("chat", False),
    ("chat", True),
    ("conversation", False),
    ("json", False),
    ("tool_call", False),
    ("tool_call", True),
    ("tool_reply", False),
)
"""Generators of held-out questions, and whether the reply may think."""

BARS: Mapping[str, float] = {
    "sums_right": 0.95,
    "chats_ended": 0.95,
    "tool_names_right": 0.95,
    "thinking_closed": 0.95,
}
"""The rates that the bundled model must reach."""


@dataclass(frozen=True)
class Question:
    """One held-out item as it is asked."""

    item: Item
    thinking: bool


@dataclass(frozen=True)
class Trial:
    """A question with the reply that came.

    Attributes:
      question: the question.
      reply: the text that came, think block included, end marker left out.
      ended: whether the model ended its turn by itself.
    """

    question: Question
    reply: str
    ended: bool


@dataclass(frozen=True)
class Rate:
    """The number of hits among all trials."""

    hits: int
    total: int

    @property
    def share(self) -> float:
        """Between 0 and 1; 0 of nothing is 0."""
        return self.hits / self.total if self.total else 0.0


def questions(count: int, seed: int = 0) -> list[Question]:
    """The first `count` held-out questions of every kind asked."""
    return [
        Question(item, thinking)
        for name, thinking in ASKED
        for item in held_out_items(name, count, seed)
    ]


def _matches(judge: Callable[[str, str], bool]) -> Callable[[Trial], bool]:
    return lambda trial: judge(trial.reply, trial.question.item.answer)


_MEASURES: Mapping[str, tuple[str | None, Callable[[Trial], bool]]] = {
    "sums_right": ("sum", _matches(grading.sum_is_right)),
    "chats_ended": ("chat", lambda trial: trial.ended),
    "chats_right": ("chat", _matches(grading.text_is_right)),
    "json_right": ("json", _matches(grading.json_is_right)),
    "tool_names_right": ("tool_call", _matches(grading.tool_names_are_right)),
    "tool_calls_right": ("tool_call", _matches(grading.tool_calls_are_right)),
}
"""By name: the kind of item that counts, and what counts as a hit."""


def rates(trials: Iterable[Trial]) -> dict[str, Rate]:
    """Every measure over the trials it applies to; "sums_right" counts both modes together.

    "thinking_closed" counts the trials of all kinds that may think.
    """
    trials = list(trials)
    found = {
        name: _rate([t for t in trials if t.question.item.kind == kind], hit)
        for name, (kind, hit) in _MEASURES.items()
    }
    thinking = [t for t in trials if t.question.thinking]
    plain = [t for t in trials if not t.question.thinking]
    found["sums_right_without_thinking"] = _rate(
        [t for t in plain if t.question.item.kind == "sum"], _MEASURES["sums_right"][1]
    )
    found["thinking_closed"] = _rate(thinking, lambda t: t.ended and grading.thinks_once(t.reply))
    return found


def _rate(trials: list[Trial], hit: Callable[[Trial], bool]) -> Rate:
    return Rate(sum(map(hit, trials)), len(trials))


def below_bar(found: Mapping[str, Rate]) -> list[str]:
    """Names of the measures that miss the bar set for the bundled model."""
    return [name for name, bar in BARS.items() if found[name].share < bar]
