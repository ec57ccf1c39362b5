"""What engines handed over to each other so far, for metrics."""

import dataclasses


@dataclasses.dataclass(slots=True)
class HandoverCounts:
    """Sums over all requests of a group of replicas whose prompts are computed apart.

    Attributes:
        prompts: that were handed over, wholly or in part.
        blocks: that decode replicas began with, and that prefill replicas had stored for them.
        tokens: in these blocks.
        seconds: from the end of a prompt's computation to its first step on a decode replica,
            over all `prompts`.
        recomputed_prompts: whose blocks did not all arrive, so that a decode replica computed more
            than the end of the prompt: for lack of room, a failed replica or copy, or new weights.
        job_tokens: tokens of prompts, and those found cached, that prefill replicas' own counters
            have beside those of decode replicas.
        cached_job_tokens: of these, tokens that prefill replicas found in their caches.
        ended_jobs: ends of such prompts, by finish reason.
    """

    prompts: int = 0
    blocks: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recomputed_prompts: int = 0
    job_tokens: int = 0
    cached_job_tokens: int = 0
    ended_jobs: dict[str, int] = dataclasses.field(default_factory=dict)
