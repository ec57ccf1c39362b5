"""The set of an engine's programs: all that it may run, and the largest, which bound its memory."""

from typing import Any

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey, ProgramKind
from jaxinfer.serving.programs.kinds.registry import KINDS, kind_of
from jaxinfer.serving.programs.programs import Program, Programs


def all_programs(buckets: Buckets, *, swaps: bool) -> list[ProgramKey]:
    """The keys of all programs that an engine may run, the slowest to compile first."""
    pairs = ((kind, each) for kind in _kinds(buckets) for each in buckets.variants)
    return list(dict.fromkeys(key for kind, each in pairs for key in kind.keys(each, swaps=swaps)))


def largest_programs(buckets: Buckets, kernels: Kernels) -> list[ProgramKey]:
    """Candidates for the largest peak memory, the slowest to compile first."""
    return [key for kind in _kinds(buckets) for key in kind.largest(buckets, kernels)]


def _kinds(buckets: Buckets) -> list[ProgramKind[Any]]:
    """The kinds of programs that an engine of these shapes has."""
    return [kind for kind in KINDS.values() if buckets.generates or kind.pools]


def program_of(programs: Programs, key: ProgramKey) -> Program:
    """The program of a key, for the engine that `programs` describes."""
    return programs.program(kind_of(key), key)


def uses_pages(key: ProgramKey) -> bool:
    """True if a program's shapes depend on the number of KV blocks."""
    return kind_of(key).uses_pages


def options_of(key: ProgramKey, *, platform: str, num_devices: int) -> dict[str, Any]:
    """XLA's options for one program, by the number of devices of the mesh."""
    if platform == "cpu":
        return {}
    # Autotuning times the ways to compute a product, but skips the slower check of their results.
    own = kind_of(key).options(key, num_devices=num_devices)
    return {"xla_gpu_autotune_level": 1} | own
