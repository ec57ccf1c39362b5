"""Starts JAX's distributed runtime from arguments, the environment or the cluster's scheduler."""

import atexit
import os
import threading
import time
from typing import Any

import jax
from jax._src import distributed

AUTO = "auto"
"""An address that is taken from Slurm, Kubernetes or MPI."""

START_TIMEOUT_S = 300
ENDED_KEY = "jaxinfer/ended/"
"""Prefix of the key, with a process id, by which that process reports a normal end."""

_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_JAX_EXTRA_S = 60  # JAX aborts the process when its own time is up; ours comes first
_HEARTBEAT_TIMEOUT_S = 60
_SHUTDOWN_TIMEOUT_S = 30
_PART_TIMEOUT_S = 10
_LAST_WORDS_S = 2


def start_processes(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout: int = START_TIMEOUT_S,
) -> None:
    """Join the other processes, if there are to be any; must come before JAX starts its backends.

    Does nothing if nothing is given here or in the environment, or if JAX's distributed runtime
    was started in the same way already.

    Args:
        coordinator_address: "HOST:PORT" of process 0, free for it to listen on; "auto" takes all
            three from Slurm, Kubernetes or MPI. None takes JAX_COORDINATOR_ADDRESS.
        num_processes: number of processes; None takes JAX_NUM_PROCESSES.
        process_id: this process's number, from 0; None takes JAX_PROCESS_ID.
        timeout: seconds to wait for the others.

    Raises:
        ValueError: an argument is missing or wrong, or the others did not come in time.
        RuntimeError: JAX has started its backends already.
    """
    place = find_place(coordinator_address, num_processes, process_id)
    if place is None or place.get("num_processes") == 1:
        return
    state = distributed.global_state
    if jax.distributed.is_initialized():
        started = {"num_processes": state.num_processes, "process_id": state.process_id}
        if not started.items() <= {**started, **place}.items():
            raise ValueError(
                f"JAX was started as process {state.process_id} of {state.num_processes}, not as "
                f"process {place['process_id']} of {place['num_processes']}; leave the arguments "
                "out"
            )
        return
    _initialize(place, timeout)
    # Runs before JAX's own hook, which waits until all processes have come as far.
    client: Any = state.client
    atexit.register(lambda: client.key_value_set(f"{ENDED_KEY}{state.process_id}", "1"))


def part_from_others() -> None:
    """Wait, for a limited time, until the other processes end too.

    An ordinary exit of Python does this by itself; call it before `os._exit`.
    """
    if jax.distributed.is_initialized():
        thread = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        thread.start()
        thread.join(_PART_TIMEOUT_S)


def end_without_the_others() -> None:
    """Let this process end without waiting for others, one of which may have been killed."""

    def forget() -> None:
        if distributed.global_state.process_id == 0:
            time.sleep(_LAST_WORDS_S)  # others end with a stack dump once process 0 is gone
        _forget_connection()

    _keep_connection()
    atexit.register(forget)


def find_place(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None
) -> dict[str, Any] | None:
    """This process's place, as `jax.distributed.initialize` takes it, or None if none is given.

    Raises:
        ValueError: something is missing or wrong; names the argument.
    """
    given = zip(_VARIABLES, (coordinator_address, num_processes, process_id), strict=True)
    place: dict[str, Any] = {
        name: os.environ.get(_VARIABLES[name]) if value is None else value for name, value in given
    }
    if all(value is None for value in place.values()):
        return None
    if place["coordinator_address"] == AUTO:
        return {}
    for name, variable in _VARIABLES.items():
        if place[name] is None:
            raise ValueError(f"several processes need {name} too (or {variable})")
    host, _, port = str(place["coordinator_address"]).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(
            f"coordinator_address must be HOST:PORT or 'auto', got {place['coordinator_address']!r}"
        )
    for name in ("num_processes", "process_id"):
        if not isinstance(place[name], int) and not str(place[name]).isdecimal():
            raise ValueError(f"{name} must be an integer, got {place[name]!r}")
        place[name] = int(place[name])
    if not 0 <= place["process_id"] < place["num_processes"]:
        raise ValueError(
            f"process_id must be from 0 to num_processes - 1, got {place['process_id']} of "
            f"{place['num_processes']}"
        )
    return place


def _initialize(place: dict[str, Any], timeout: int) -> None:
    """Start JAX's runtime in a thread, because it can't be interrupted and ends with an abort."""
    # With the preemption service on, SIGTERM would no longer end the process.
    jax.config.update("jax_enable_preemption_service", False)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            jax.distributed.initialize(
                **place,
                cluster_detection_method="deactivate" if place else None,
                initialization_timeout=timeout + _JAX_EXTRA_S,
                heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_S,
                shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT_S,
            )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="jaxinfer-start", daemon=True)
    thread.start()
    try:
        thread.join(timeout)
        if thread.is_alive():
            raise ValueError(
                f"waited {timeout} s for all processes to come to "
                f"{distributed.global_state.coordinator_address}; start each with the same "
                "coordinator_address and its own process_id, and see that the port is reachable"
            )
    except BaseException:
        _keep_connection()
        _forget_connection()
        raise
    if errors:
        (error,) = errors
        if isinstance(error, ValueError) and not place:
            raise ValueError(
                "coordinator_address='auto' needs Slurm, Kubernetes or MPI, and none was found; "
                "give coordinator_address, num_processes and process_id"
            ) from None
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise ValueError(str(error).splitlines()[0]) from None
        raise error


def _keep_connection() -> None:
    """Hold on to the connection until the process has ended: freeing it would wait, too."""
    kept = (distributed.global_state.client, distributed.global_state.service)
    threading.Thread(target=lambda: kept and threading.Event().wait(), daemon=True).start()


def _forget_connection() -> None:
    """Drop JAX's connection, whose shutdown would wait for others, or end the process."""
    distributed.global_state.client = distributed.global_state.service = None
