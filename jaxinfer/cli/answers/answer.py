"""Runs one prompt as a stream of text, with the statistics of the run."""

import dataclasses
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.answers.statistics import RunStatistics, Stopwatch, peak_memory_bytes
from jaxinfer.cli.prompts import PromptLine

if TYPE_CHECKING:
    from jaxinfer import LLM, SamplingParams, Tokenizer
    from jaxinfer.outputs import RequestMetrics, RequestOutput


@dataclasses.dataclass
class Answer:
    """The result of one prompt.

    Attributes:
        text: the output so far.
        token_ids: its tokens.
        finish_reason: "stop", "length" or "error"; None if the stream was left early.
        error: what went wrong, with "error".
        prompt_tokens: tokens of the prompt.
        cached_tokens: of these, tokens whose KV was already in the cache.
        metrics: its times and counts.
        statistics: of the run; None until it ends, and for the answers of a batch.
    """

    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    metrics: "RequestMetrics | None" = None
    statistics: RunStatistics | None = None

    def extend(self, output: "RequestOutput") -> None:
        """Add the new part of `output`."""
        piece = output.outputs[0]
        self.text += piece.text
        self.token_ids.extend(piece.token_ids)
        self.finish_reason, self.error = piece.finish_reason, output.error
        self.prompt_tokens = len(output.prompt_token_ids)
        self.cached_tokens, self.metrics = output.num_cached_tokens, output.metrics

    def record(self, line: PromptLine) -> dict[str, Any]:
        """The answer to `line` as JSON-like values; times are in seconds from its arrival."""
        record: dict[str, Any] = {} if line.id is None else {"id": line.id}
        record |= {
            "prompt": line.text,
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
        }
        if self.error is not None:
            record["error"] = self.error
        record["statistics"] = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": len(self.token_ids),
            "first_token_s": self.metrics and self.metrics.ttft,
            "total_s": self.metrics and self.metrics.e2e_latency,
        }
        return record


def tokenizer_of(llm: "LLM") -> "Tokenizer":
    """The engine's tokenizer.

    Raises:
        ValueError: it has none.
    """
    if llm.tokenizer is None:
        raise ValueError("the model has no tokenizer, and a command needs one: give --tokenizer")
    return llm.tokenizer


def stream_answer(
    llm: "LLM", prompt: Any, params: "SamplingParams", answer: Answer
) -> Generator[str]:
    """Yield the text of an answer piece by piece and fill in `answer`.

    Closing the iterator aborts the request.

    Args:
        llm: the engine.
        prompt: as `LLM.stream` takes it.
        params: the sampling parameters.
        answer: an empty one, to be filled in.

    Raises:
        ValueError: the prompt does not fit the model, or the request failed.
    """
    watch = Stopwatch(llm)
    outputs: Any = llm.stream(prompt, params)
    try:
        with closing(outputs):
            for output in outputs:
                if output.error is not None:
                    raise ValueError(f"the request failed: {output.error}")
                if output.outputs[0].token_ids:
                    watch.mark_first_token()
                answer.extend(output)
                yield output.outputs[0].text
    finally:
        answer.statistics = RunStatistics(
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            generation_tokens=len(answer.token_ids),
            finish_reason=answer.finish_reason,
            first_token_s=watch.first_token_s(),
            first_compile_s=watch.first_compile_s(),
            total_s=watch.elapsed(),
            num_compilations=watch.num_compilations(),
            compile_s=watch.compile_s(),
            peak_memory_bytes=peak_memory_bytes(),
        )


def cut_reason(
    answer: Answer, params: "SamplingParams", max_model_len: int, *, setting: str
) -> str | None:
    """Why an answer ended before the model ended it, and what to change; None if it was not cut.

    Args:
        answer: the complete answer.
        params: its sampling parameters.
        max_model_len: most tokens of prompt and output together.
        setting: how the user sets the maximum number of tokens, for example "--max-tokens".
    """
    if answer.finish_reason != "length":
        return None
    if params.max_tokens is not None and len(answer.token_ids) >= params.max_tokens:
        return f"cut at {setting} {params.max_tokens}; raise it for a longer answer"
    return (
        f"cut where prompt and answer fill the context of {max_model_len} tokens; "
        "--max-model-len sets it"
    )
