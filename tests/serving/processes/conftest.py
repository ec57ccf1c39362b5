"""What the tests of several processes share: processes that are threads of one."""

import threading

import jax
import pytest

from jaxinfer.serving.processes.group import ProcessGroup


class Store:
    """JAX's coordination service, as far as a group asks it."""

    def __init__(self):
        self.values = {}
        self._changed = threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            if key in self.values and not allow_overwrite:
                raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: {key}")
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, milliseconds):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, milliseconds / 1e3):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.values[key]

    def key_value_delete(self, key):
        with self._changed:
            del self.values[key]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def groups(store):
    """Process 0 of three, and the two others."""
    made = [ProcessGroup(i, 3, store, "engine/") for i in range(3)]
    yield made
    for group in made:
        group.close()
