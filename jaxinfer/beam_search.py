"""Parameters and outputs of beam search, under vLLM's names."""

import typing
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from jaxinfer.checks import MAX_INT32, check_flag, check_integer, check_real, show
from jaxinfer.logprobs import LogprobsAtPosition

ScoreRule = Literal["vllm", "transformers"]
EarlyStopping = bool | Literal["never"]

MAX_BEAM_WIDTH = 4096
MAX_LENGTH_PENALTY = 100.0


@typing.no_type_check  # its fields check themselves, by name; run-time checkers would come first
@dataclass(frozen=True)
class BeamSearchParams:
    """Parameters of `LLM.beam_search`: vLLM's fields, and after them the choice of another rule.

    Two rules are known by name. Both sum the log-probabilities of a beam's output tokens and divide
    the sum by a length to the power of `length_penalty`.

    - "vllm": the length is that of the prompt and the output, without an end-of-sequence token at
      its end. A beam ends where that token is among the `2 * beam_width` likeliest after it. The
      search ends when no running beam can become one of the best `n` any more, so that the result
      is that of all `max_tokens` steps.
    - "transformers": the length is that of the output, with the end-of-sequence token. A beam ends
      only if it is then among the `beam_width` best of its step, and `early_stopping` says when the
      search ends. This is `generate(num_beams=beam_width)` of transformers 5.

    Attributes:
        beam_width: beams that go on after each step, 1 to 4096.
        max_tokens: most output tokens.
        ignore_eos: end-of-sequence tokens end no beam.
        temperature: 0 or 1, which mean the same: scores are of the distribution that the engine's
            `logprobs_mode` reports.
        length_penalty: exponent of the length, -100 to 100; 0 is the plain sum, and higher values
            favour longer outputs.
        include_stop_str_in_output: keep the text of the end-of-sequence token.
        n: beams that are returned, at most `beam_width`; None is all.
        score_rule: "vllm" or "transformers".
        early_stopping: with the rule "transformers": True ends the search when `beam_width` beams
            have ended; False when the best running one, scored at its length, is no better than the
            worst of these; "never" is False with the score at `max_tokens` where `length_penalty`
            is positive.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: a field is outside its range, or two contradict each other.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    _: KW_ONLY
    n: int | None = None
    score_rule: ScoreRule = "vllm"
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        """Check every field."""
        width = check_integer("beam_width", self.beam_width, 1, MAX_BEAM_WIDTH)
        check_integer("max_tokens", self.max_tokens, 1, MAX_INT32)
        check_flag("ignore_eos", self.ignore_eos)
        check_flag("include_stop_str_in_output", self.include_stop_str_in_output)
        check_real("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if check_real("temperature", self.temperature, 0.0, 1.0) not in (0.0, 1.0):
            raise ValueError(
                f"temperature must be 0 or 1, got {show(self.temperature)}: beams are scored by "
                "the log-probabilities that the engine reports; leave it out"
            )
        if self.n is not None:
            check_integer("n", self.n, 1, width)
        if self.score_rule not in typing.get_args(ScoreRule):
            known = "'vllm' or 'transformers'"
            raise ValueError(f"score_rule must be {known}, got {show(self.score_rule)}")
        if self.early_stopping != "never" and not isinstance(self.early_stopping, bool):
            value = show(self.early_stopping)
            raise ValueError(f"early_stopping must be True, False or 'never', got {value}")
        if self.early_stopping is not False and self.score_rule != "transformers":
            raise ValueError(
                "early_stopping belongs to score_rule='transformers'; give both, or leave it out"
            )

    @property
    def num_returned(self) -> int:
        """Beams that are returned."""
        return self.beam_width if self.n is None else self.n


@dataclass(slots=True)
class BeamSearchSequence:
    """One of the best beams of a prompt.

    Attributes:
        tokens: the prompt and the output, an end-of-sequence token included.
        logprobs: for each output token the likeliest tokens at its position.
        cum_logprob: sum of the log-probabilities of the output tokens.
        text: of `tokens`; None without a tokenizer.
        finish_reason: "stop" after an end-of-sequence token, "length" after `max_tokens`.
        score: by which beams are compared; higher is better.
    """

    tokens: list[int]
    logprobs: list[LogprobsAtPosition]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: Literal["stop", "length"] | None = None
    score: float = 0.0


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of a prompt, best first.

    Attributes:
        sequences: the beams.
        prompt_token_ids: the prompt, with which each beam's `tokens` begin.
    """

    sequences: list[BeamSearchSequence]
    prompt_token_ids: list[int]
