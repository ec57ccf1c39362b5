"""The flags that make a command one of several processes, on one host or on many."""

import argparse
import os
from typing import Any

from jaxinfer.cli.flags.fields import given

PROCESS_FIELDS = frozenset({"coordinator_address", "num_processes", "process_id"})


def add_process_flags(group: argparse._ArgumentGroup) -> None:
    """Add the arguments of `LLM` that locate the other processes."""
    unset: Any = argparse.SUPPRESS
    group.add_argument(
        "--coordinator-address",
        default=unset,
        help="HOST:PORT of process 0, or auto under Slurm, Kubernetes or MPI "
        "(default: $JAX_COORDINATOR_ADDRESS, else there is one process)",
    )
    group.add_argument(
        "--num-processes",
        type=int,
        default=unset,
        help="number of processes (default: $JAX_NUM_PROCESSES)",
    )
    group.add_argument(
        "--process-id",
        type=int,
        default=unset,
        help="number of this process; 0 takes the requests (default: $JAX_PROCESS_ID)",
    )


def process_arguments(namespace: argparse.Namespace) -> dict[str, Any]:
    """The flags that the user gave, ready for `start_processes(**arguments)`."""
    return given(namespace, PROCESS_FIELDS)


def is_one_of_several(namespace: argparse.Namespace) -> bool:
    """True if flags or environment variables name other processes."""
    return bool(process_arguments(namespace)) or "JAX_COORDINATOR_ADDRESS" in os.environ


def is_first_process() -> bool:
    """True if this is process 0, once the platform has started."""
    import jax

    return jax.process_index() == 0
