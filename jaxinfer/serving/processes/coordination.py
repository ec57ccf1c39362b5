"""JAX's coordination service, through the few parts of it that JAX has not made public."""

import threading
from typing import Any

import jax
from jax._src import clusters, distributed


def is_started() -> bool:
    """Whether this process is one of several that JAX knows of."""
    return jax.distributed.is_initialized() and num_processes() > 1


def num_processes() -> int:
    """The number of processes, as they were started."""
    return distributed.global_state.num_processes


def process_id() -> int:
    """This process's id."""
    return distributed.global_state.process_id


def forget() -> None:
    """Forget a connection that was never made: shutting it down would wait, or print errors."""
    state = distributed.global_state
    threading.Thread(target=_keep, args=(state.client, state.service), daemon=True).start()
    state.client = state.service = None


def coordinator_host() -> str:
    """Where process 0 listens, as process 0 was told."""
    address = distributed.global_state.coordinator_address or ""
    return address.rpartition(":")[0].strip("[]")


def detect(timeout: int) -> tuple[str | None, int | None, int | None, Any]:
    """The settings of Slurm, Kubernetes or MPI: coordinator, number of processes, id, devices."""
    detected = clusters.ClusterEnv.auto_detect_unset_distributed_params
    return detected(None, None, None, None, None, timeout)


def put(key: str, value: bytes) -> None:
    """Store a value for all processes, in place of an earlier one."""
    _client().key_value_set_bytes(key, value, allow_overwrite=True)


def delete(key: str) -> None:
    """Forget a value."""
    _client().key_value_delete(key)


def get(key: str) -> bytes | None:
    """A stored value, or None."""
    try:
        return _client().key_value_try_get_bytes(key)
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return None


def _keep(*objects: object) -> None:
    """Hold on to objects until the process has ended."""
    threading.Event().wait()


def _client() -> Any:
    return distributed.global_state.client
