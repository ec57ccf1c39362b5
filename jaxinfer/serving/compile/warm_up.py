"""Runs an engine's programs once on padding, so that the first request finds them warm."""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax

from jaxinfer.serving.programs.kinds.kind import DeviceArrays, ProgramKey
from jaxinfer.serving.programs.kinds.registry import kind_of
from jaxinfer.serving.programs.programs import Programs


def warm_up(
    programs: Programs,
    keys: Iterable[ProgramKey],
    run: Callable[..., Any],
    arrays: DeviceArrays,
    *,
    watching: Callable[[ProgramKey], AbstractContextManager[object]],
) -> DeviceArrays:
    """Run the programs that answers wait for on padding, each to its end.

    Args:
        programs: the engine's.
        keys: which programs.
        run: ``run(key, *arguments)`` runs a compiled program.
        arrays: what the engine keeps; all but the parameters are donated.
        watching: a block within which one program's runs end.

    Returns:
        The same with the programs' results.
    """
    for key in keys:
        kind = kind_of(key)
        with watching(key):
            for _ in range(kind.num_warm_up_runs(key)):
                arrays = kind.warm_up(programs, key, functools.partial(run, key), arrays)
            jax.block_until_ready((arrays.kv, arrays.last_tokens, arrays.slots))
    return arrays
