"""Runs one prompt as a stream of text, with the statistics of the run."""

import dataclasses
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.statistics import RunStatistics, Stopwatch, peak_memory_bytes

if TYPE_CHECKING:
    from jaxinfer import LLM, SamplingParams, Tokenizer


@dataclasses.dataclass
class Answer:
    """What came of one prompt.

    Attributes:
        text: all of it so far.
        token_ids: its tokens.
        finish_reason: "stop" or "length"; None if the stream was left early.
        statistics: of the run; None while it goes on.
    """

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    statistics: RunStatistics | None = None


def tokenizer_of(llm: "LLM") -> "Tokenizer":
    """The engine's tokenizer.

    Raises:
        ValueError: it has none.
    """
    if llm.tokenizer is None:
        raise ValueError("the model has no tokenizer, and a command needs one: give --tokenizer")
    return llm.tokenizer


def stream_answer(
    llm: "LLM", prompt_token_ids: list[int], params: "SamplingParams", answer: Answer
) -> Generator[str]:
    """Yield the text of an answer piece by piece and fill `answer` meanwhile.

    Closing the iterator aborts the request.

    Raises:
        ValueError: the prompt does not fit the model, or the request failed.
    """
    watch, compiled = Stopwatch(), llm.num_compilations
    outputs: Any = llm.stream({"prompt_token_ids": prompt_token_ids}, params)
    cached = 0
    try:
        with closing(outputs):
            for output in outputs:
                if output.error is not None:
                    raise ValueError(f"the request failed: {output.error}")
                piece = output.outputs[0]
                if piece.token_ids:
                    watch.mark_first_token()
                answer.text += piece.text
                answer.token_ids.extend(piece.token_ids)
                answer.finish_reason = piece.finish_reason
                cached = output.num_cached_tokens
                yield piece.text
    finally:
        answer.statistics = RunStatistics(
            prompt_tokens=len(prompt_token_ids),
            cached_tokens=cached,
            generation_tokens=len(answer.token_ids),
            first_token_s=watch.first_token_s(),
            total_s=watch.elapsed(),
            num_compilations=llm.num_compilations - compiled,
            peak_memory_bytes=peak_memory_bytes(),
        )
