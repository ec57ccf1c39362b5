"""The answer to one prompt, of an engine here or of a server, and its record as JSON."""

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.prompts import PromptLine

if TYPE_CHECKING:
    from jaxinfer.outputs import RequestMetrics

Piece = tuple[bool, str]
"""A piece of an answer: True if it is marked as thinking, and its text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Time and memory of one run, as its caller measures them.

    Attributes:
        first_token_s: seconds from submission to the first token.
        total_s: seconds from submission to the last token.
        first_compile_s: seconds of `first_token_s` spent compiling.
        steady: tokens behind the first output's and the seconds they took, without outputs that
            waited for a compilation; None from a server, whose compilations are not known.
        compile_s: seconds of `total_s` spent compiling.
        num_compilations: programs that were compiled within `total_s`.
        peak_memory_bytes: of the process; 0 if it is not known.
    """

    first_token_s: float
    total_s: float
    first_compile_s: float = 0.0
    steady: tuple[int, float] | None = None
    compile_s: float = 0.0
    num_compilations: int = 0
    peak_memory_bytes: int = 0


@dataclasses.dataclass
class Answer:
    """The result of one prompt.

    Attributes:
        text: the output so far.
        token_ids: its tokens; None from a server, which sends text.
        finish_reason: "stop", "length" or "error"; None if the stream was left early.
        error: the error's message, with "error".
        prompt_tokens: tokens of the prompt.
        cached_tokens: of these, tokens whose KV was already in the cache.
        generation_tokens: tokens of the output.
        metrics: the engine's own times; None from a server.
        times: of the run; None until it ends, and for an engine's answers of a batch.
    """

    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    metrics: "RequestMetrics | None" = None
    times: RunTimes | None = None

    def record(self, line: PromptLine) -> dict[str, Any]:
        """The answer to `line` as JSON-like values; times are in seconds from its arrival."""
        record: dict[str, Any] = {} if line.id is None else {"id": line.id}
        record |= {"prompt": line.text, "text": self.text}
        if self.token_ids is not None:
            record["token_ids"] = self.token_ids
        record["finish_reason"] = self.finish_reason
        if self.error is not None:
            record["error"] = self.error
        times = self.times
        first_token_s, total_s = times and times.first_token_s, times and times.total_s
        if self.metrics is not None:
            first_token_s, total_s = self.metrics.ttft, self.metrics.e2e_latency
        record["statistics"] = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "first_token_s": first_token_s,
            "total_s": total_s,
        }
        drafts, accepted = self.drafts
        if drafts:
            record["statistics"] |= {
                "draft_tokens": drafts,
                "accepted_draft_tokens": accepted,
                "draft_acceptance_rate": accepted / drafts,
            }
        return record

    @property
    def drafts(self) -> tuple[int, int]:
        """Drafts that were verified, and of these the accepted ones; 0 each from a server."""
        metrics = self.metrics
        return (metrics.num_draft_tokens, metrics.num_accepted_tokens) if metrics else (0, 0)
