"""Refuses what an engine can't measure exactly: its own functions and modes decide."""

from typing import NamedTuple

from jaxinfer.config import LogprobsMode
from jaxinfer.sampling_params import SamplingParams


class Exactness(NamedTuple):
    """What decides which measures of tokens are exact in an engine.

    Attributes:
        logprobs_mode: the engine's.
        has_processor: whether it has a logits processor of its caller's.
        has_sampler: whether it has a sampler of its caller's.
    """

    logprobs_mode: LogprobsMode = "raw_logprobs"
    has_processor: bool = False
    has_sampler: bool = False

    def check(self, params: SamplingParams) -> None:
        """Refuse parameters that ask for more.

        Raises:
            ValueError: names the field and what it does not go with.
        """
        if params.support is not None and self.has_sampler:
            raise ValueError(
                "support doesn't go with LLM(sampler=...), which draws from what only it knows"
            )
        if not params.forced_token_ids:
            return
        is_processed = self.logprobs_mode == "processed_logprobs" and (
            params.logprobs is not None or params.logprob_token_ids is not None
        )
        if is_processed and self.has_sampler:
            raise ValueError(
                "forced_token_ids with processed log-probabilities don't go with LLM(sampler=...), "
                "which draws from what only it knows; start the engine with another logprobs_mode"
            )
        reports_edits = params.support is not None or is_processed
        if reports_edits and self.has_processor:
            raise ValueError(
                "forced_token_ids with support or processed log-probabilities don't go with "
                "LLM(logits_processor=...): a prefill does not call it"
            )
        if reports_edits and params.edits_logits:
            raise ValueError(
                "forced_token_ids with processed log-probabilities don't go with penalties, "
                "logit_bias, allowed_token_ids or min_tokens: a prefill applies none; start the "
                "engine with another logprobs_mode, or leave these out"
            )


RAW = Exactness()
"""Of an engine without functions of its caller's, in the default mode."""
