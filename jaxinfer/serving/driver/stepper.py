"""Steps an engine between the calls of its driver's parts, which share this."""

from jaxinfer.serving.driver.deadlines import Deadlines
from jaxinfer.serving.driver.sleep_state import SleepState
from jaxinfer.serving.engine.steppable import Steppable


class Stepper:
    """An engine, with what says whether it may run a step; for the engine's thread.

    Attributes:
        deadlines: when requests with a time limit must end.
        sleep: which parts of the engine sleep.
    """

    def __init__(self, engine: Steppable) -> None:
        self.engine = engine
        self.deadlines = Deadlines()
        self.sleep = SleepState()
        self._is_stepping = False

    def step(self) -> None:
        """Run one step of the engine."""
        self._is_stepping = True
        try:
            self.engine.step()
        finally:
            self._is_stepping = False

    def end_overdue(self) -> None:
        """End requests whose time is over; each receives a last output that says so."""
        for key in self.deadlines.overdue():
            self.engine.abort(key)
            self.deadlines.end(key)

    def check_between_steps(self) -> None:
        """Raise RuntimeError if a step runs."""
        if self._is_stepping:
            raise RuntimeError("this was called from within a step; call it from another thread")
