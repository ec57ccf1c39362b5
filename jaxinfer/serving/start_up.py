"""Where the time of an engine's start goes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StartUpTimes:
    """Seconds of one engine's start, and what was found on disk.

    Attributes:
        load_s: tokenizer and weights, until they are on the devices.
        plan_s: choosing shapes and counting KV blocks; on a GPU the largest steps are compiled
            for that, with few layers, while others begin to.
        compile_s: compiling the other programs ahead, until the last is ready.
        allocate_s: making the KV pages.
        lower_s: of `plan_s` and `compile_s`, what the thread that hands programs to the compiler
            spent on tracing, on reading from disk, and on waiting for worker processes.
        xla_s: time in the compiler, or in reading from its cache; summed over its threads.
        num_traced: programs traced in this process.
        num_read: programs found on disk, traced by a worker or by an earlier process.
    """

    load_s: float
    plan_s: float
    compile_s: float
    allocate_s: float
    lower_s: float
    xla_s: float
    num_traced: int
    num_read: int
