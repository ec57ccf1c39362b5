"""Programs that run operation by operation, for debuggers: nothing is traced or compiled."""

from typing import Any

import jax
from jax.sharding import Mesh

from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.programs.programs import Program


class EagerProgram:
    """A program's Python function, run in the thread that calls it, in place of an executable.

    Its arguments and all that it computes are arrays with values, so that breakpoints, `print` and
    conditions on values work inside, also in JAX's loops, which are Python's here. Nothing is
    donated: each write to the pages copies them.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._settings = JaxSettings.here()

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Any:
        """The program itself: there is nothing to compile."""
        return self

    def memory_analysis(self) -> None:
        """None: nothing was compiled, so there is no analysis."""

    def __call__(self, *arguments: Any) -> Any:
        """Run it."""
        with self._settings.held(), jax.disable_jit():
            return self._program.function(*arguments)


def check_eager(mesh: Mesh) -> None:
    """Refuse several devices: functions that are not compiled have no collectives.

    Raises:
        ValueError: names the number of devices.
    """
    if mesh.size > 1:
        raise ValueError(
            f"eager=True runs a model on one device, not on {mesh.size}: leave "
            "tensor_parallel_size and mesh out"
        )
