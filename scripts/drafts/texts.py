"""Prompts and answers of given repetitiveness, and the sampler that draws these answers.

A model of random weights repeats nothing as people's texts do. So what it answers is given: the
model computes its logits as ever, and the sampler then takes the token that stands in the answer.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer import SamplerState

_TOKEN_IDS = 10_000  # ids below this, if the vocabulary has as many
_COPIED, _CHANGED = 40, 10
_SIGNATURE, _BODY = 24, 40


@dataclasses.dataclass(frozen=True)
class Text:
    """A prompt and its answer, as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


def make_texts(
    kind: str, rows: int, *, prompt_len: int, output_len: int, vocab_size: int
) -> list[Text]:
    """A text for each row, all different.

    Args:
        kind: of `KINDS`.
        rows: number of texts.
        prompt_len: tokens of each prompt.
        output_len: tokens of each answer, at most those of the prompt.
        vocab_size: ids stay below it.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no texts {kind!r}; there are {', '.join(KINDS)}")
    _, answer = KINDS[kind]
    texts = []
    for row in range(rows):
        source = _IdSource(f"{kind} {row}", min(vocab_size, _TOKEN_IDS))
        prompt = source.fresh(prompt_len)
        texts.append(Text(prompt, answer(source, prompt)[:output_len]))
    return texts


def scripted_sampler(
    texts: Sequence[Text],
) -> Callable[[jax.Array, SamplerState, jax.Array], jax.Array]:
    """A sampler that draws the answer of the text whose number is the request's seed.

    Args:
        texts: with prompts of one length, and answers of one length.
    """
    table = np.array([[*text.prompt, *text.answer] for text in texts], np.int32)

    def sampler(logits: jax.Array, state: SamplerState, keys: jax.Array) -> jax.Array:
        rows = state.seeds[:, 0].astype(jnp.int32)
        return jnp.asarray(table).at[rows, state.positions].get(mode="clip")

    return sampler


class _IdSource:
    """Draws token ids."""

    def __init__(self, name: str, limit: int) -> None:
        self._source = random.Random(name)
        self._limit = limit

    def fresh(self, count: int) -> list[int]:
        return [self._source.randrange(self._limit) for _ in range(count)]


def _copy(_: _IdSource, prompt: Sequence[int]) -> list[int]:
    return list(prompt)


def _edits(source: _IdSource, prompt: Sequence[int]) -> list[int]:
    answer: list[int] = []
    for start in range(0, len(prompt), _COPIED + _CHANGED):
        answer += [*prompt[start : start + _COPIED], *source.fresh(_CHANGED)]
    return answer


def _code(source: _IdSource, prompt: Sequence[int]) -> list[int]:
    signature, answer = source.fresh(_SIGNATURE), []
    while len(answer) < len(prompt):
        answer += [*signature, *source.fresh(_BODY)]
    return answer


def _free(source: _IdSource, prompt: Sequence[int]) -> list[int]:
    return source.fresh(len(prompt))


KINDS: dict[str, tuple[str, Callable[[_IdSource, Sequence[int]], list[int]]]] = {
    "copy": ("the answer is the prompt", _copy),
    "edits": (f"{_COPIED} tokens of the prompt, {_CHANGED} new ones, and so on", _edits),
    "code": (f"a signature of {_SIGNATURE} tokens before each {_BODY} new ones", _code),
    "free": ("nothing is repeated", _free),
}
"""Descriptions of kinds of texts, and what makes an answer from its prompt."""
