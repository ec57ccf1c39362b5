"""The part of an engine that captures nothing and changes nothing."""

from typing import Any

from jaxinfer.serving.requests.new_request import NewRequest

NO_CAPTURE = "this engine captures nothing; make it with capture=Capture(...)"
NO_INTERVENTION = "this engine has no intervention; make it with intervention=..."


class NoInspection:
    """Stands in the place of an `EngineInspection` where there is none."""

    def requests(
        self, requests: list[NewRequest], capture: Any, intervene: Any
    ) -> list[NewRequest]:
        """The same requests; ValueError if a call asks for anything."""
        for asked, refusal in ((capture, NO_CAPTURE), (intervene, NO_INTERVENTION)):
            if any(asked) if isinstance(asked, (list, tuple)) else asked:
                raise ValueError(refusal)
        return requests

    def replace_state(self, state: Any) -> None:
        """ValueError: there is no state."""
        raise ValueError(NO_INTERVENTION)
