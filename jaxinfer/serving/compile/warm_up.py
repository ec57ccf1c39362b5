"""Runs an engine's programs once on padding, so that the first request finds them warm."""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.registry import kind_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.resident import Resident


def warm_up(
    programs: Programs,
    keys: Iterable[ProgramKey],
    call: Callable[..., Any],
    resident: Resident,
    *,
    watching: Callable[[ProgramKey], AbstractContextManager[object]],
) -> Resident:
    """Run the programs that answers will wait for once on padding, each to its end.

    Args:
        call: ``call(key, *arguments)`` runs a compiled program.
        resident: all but the parameters are donated.
        watching: a context manager inside which one program runs to its end.

    Returns:
        The same with the programs' results.
    """
    for key in keys:
        kind = kind_of(key)
        with watching(key):
            for _ in range(kind.num_warm_up_runs(key)):
                resident = kind.warm_up(programs, key, functools.partial(call, key), resident)
            jax.block_until_ready((resident.kv, resident.last_tokens, resident.slots))
    return resident
