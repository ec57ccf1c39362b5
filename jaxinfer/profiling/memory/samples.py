"""A sample of a device's memory while one step runs."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MemorySample:
    """Memory of a device when one step was launched.

    Attributes:
        time_s: since the recording began.
        rows: sequences of the step.
        tokens: tokens that it feeds.
        kv_used_bytes: KV blocks that running sequences hold; the rest of the cache is free, or
            keeps prefixes for later.
        step_bytes: what the step's programs need beside weights, cache and slots, as the compiler
            says.
        in_use_bytes: in XLA's allocator; None where the device does not tell.
        program: the step's program with the most temporaries.
    """

    time_s: float
    rows: int
    tokens: int
    kv_used_bytes: int
    step_bytes: int
    in_use_bytes: int | None
    program: str
