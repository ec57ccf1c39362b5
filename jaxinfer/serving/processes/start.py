"""Starts JAX's distributed runtime from arguments, the environment or the cluster's scheduler."""

import atexit
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import jax

from jaxinfer.serving.processes import coordination
from jaxinfer.serving.processes.forwarder import Forwarder

AUTO = "auto"
"""In place of an address: Slurm, Kubernetes or MPI know it."""

START_TIMEOUT_S = 300
ENDED_KEY = "jaxinfer/ended/"
"""Followed by a process id: that process has ended in good order."""

_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
# JAX aborts the process when its own time is up; ours comes first.
_JAX_EXTRA_S = 60
_SHUTDOWN_TIMEOUT_S = 30
_PART_TIMEOUT_S = 10


@dataclass(frozen=True)
class Place:
    """This process among the others.

    Attributes:
        host: of process 0.
        port: of the coordination service there.
        num_processes: how many there are.
        process_id: which one this is.
        local_device_ids: the devices it may use; None is all that it sees.
    """

    host: str
    port: int
    num_processes: int
    process_id: int
    local_device_ids: Any = None

    @property
    def address(self) -> str:
        """The address of the coordination service, as HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


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
        coordinator_address: "HOST:PORT" of process 0, free for it to listen on; "auto" has Slurm,
            Kubernetes or MPI tell all three. None takes JAX_COORDINATOR_ADDRESS.
        num_processes: how many processes there are; None takes JAX_NUM_PROCESSES.
        process_id: which one this is, from 0; None takes JAX_PROCESS_ID.
        timeout: seconds to wait for the others.

    Raises:
        ValueError: an argument is missing or wrong, or the others did not come in time.
        RuntimeError: JAX has started its backends already.
    """
    place = find_place(coordinator_address, num_processes, process_id, timeout)
    if place is None or place.num_processes == 1:
        return
    if jax.distributed.is_initialized():
        started = (coordination.num_processes(), coordination.process_id())
        if started != (place.num_processes, place.process_id):
            raise ValueError(
                f"JAX was started as process {started[1]} of {started[0]}, not as process "
                f"{place.process_id} of {place.num_processes}; leave the arguments out"
            )
        return
    if place.process_id > 0:
        forwarder = Forwarder(
            place.host, place.port, lambda ending: _end_without(place.address, ending=ending)
        )
        _initialize(forwarder.address, place, timeout)
        atexit.register(forwarder.close)
    else:
        _initialize(place.address, place, timeout)
    # Runs before JAX's own hook, which waits until all processes have come as far.
    atexit.register(lambda: coordination.put(f"{ENDED_KEY}{place.process_id}", b"1"))


def part_from_others() -> None:
    """Wait, not for long, until the other processes end too.

    An ordinary exit of Python does this by itself; call it before `os._exit`.
    """
    if coordination.is_started():
        thread = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        thread.start()
        thread.join(_PART_TIMEOUT_S)


def find_place(
    coordinator_address: str | None, num_processes: int | None, process_id: int | None, timeout: int
) -> Place | None:
    """This process's place from arguments and environment; None if neither says anything.

    Raises:
        ValueError: something is missing or wrong; names the argument.
    """
    given = {
        "coordinator_address": coordinator_address,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    values = {
        name: os.environ.get(variable) if given[name] is None else given[name]
        for name, variable in _VARIABLES.items()
    }
    if all(value is None for value in values.values()):
        return None
    local_device_ids = None
    if values["coordinator_address"] == AUTO:
        *detected, local_device_ids = coordination.detect(timeout)
        if None in detected:
            raise ValueError(
                "coordinator_address='auto' needs Slurm, Kubernetes or MPI, and none was found; "
                "give coordinator_address, num_processes and process_id"
            )
        values = dict(zip(_VARIABLES, detected, strict=True))
    for name, variable in _VARIABLES.items():
        if values[name] is None:
            raise ValueError(f"several processes need {name} too (or {variable})")
    host, port = _host_and_port(values["coordinator_address"])
    count = _integer("num_processes", values["num_processes"], 1, None)
    index = _integer("process_id", values["process_id"], 0, count - 1)
    return Place(host, port, count, index, local_device_ids)


def _initialize(address: str, place: Place, timeout: int) -> None:
    """Start JAX's runtime in a thread, because it can't be interrupted and ends with an abort."""
    # With the preemption service on, SIGTERM would no longer end the process.
    jax.config.update("jax_enable_preemption_service", False)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            jax.distributed.initialize(
                address,
                place.num_processes,
                place.process_id,
                local_device_ids=place.local_device_ids,
                cluster_detection_method="deactivate",
                initialization_timeout=timeout + _JAX_EXTRA_S,
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
                f"process {place.process_id} waited {timeout} s for all {place.num_processes} "
                f"processes to come to {place.address}; start each with the same "
                "coordinator_address and its own process_id, and see that the port is reachable"
            )
    except BaseException:
        coordination.forget()  # JAX would wait for the connection when Python ends
        raise
    if errors:
        (error,) = errors
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise ValueError(f"process {place.process_id}: {str(error).splitlines()[0]}") from None
        raise error


def _end_without(address: str, *, ending: bool) -> None:
    """End this process, whose coordinator has gone; one that ends anyway gets time to do so."""
    time.sleep(1)  # a process that knows more says it first
    if ending:
        os._exit(0)
    text = f"jaxinfer: process 0 (at {address}) has ended; this process ends too"
    print(text, file=sys.stderr, flush=True)
    os._exit(1)


def _host_and_port(address: Any) -> tuple[str, int]:
    host, colon, port = str(address).rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"coordinator_address must be HOST:PORT or 'auto', got {address!r}")
    return host.strip("[]"), int(port)


def _integer(name: str, value: Any, low: int, high: int | None) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if number < low or (high is not None and number > high):
        limit = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {limit}, got {number}")
    return number
