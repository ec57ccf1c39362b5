"""Which of a request's given tokens are scored: a prompt's from one on, and forced ones."""

from jaxinfer.sampling_params import SamplingParams


def scored_range(params: SamplingParams, num_prompt_tokens: int, scores_forced: bool) -> range:
    """The positions of tokens that predict a scored one, consecutive; empty for none.

    Args:
        scores_forced: whether forced tokens are scored where log-probabilities are asked for; one
            of several completions does it for all.
    """
    first = stop = num_prompt_tokens - 1
    if params.prompt_logprobs is not None:
        first = min(max(params.prompt_logprob_start - 1, 0), first)
    if scores_forced and params.is_reported:
        stop += len(params.forced_token_ids or ())
    return range(first, stop)


def is_scored_plainly(params: SamplingParams) -> bool:
    """Whether all of its prompt is scored, and nothing else: programs of all engines do that."""
    return (
        params.prompt_logprobs is not None
        and params.prompt_logprob_start <= 1
        and not params.forced_token_ids
        and not params.entropy
    )
