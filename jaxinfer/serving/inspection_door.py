"""What `LLM` lets its callers do to activations."""

from typing import Any

from jaxinfer.serving.expert_door import ExpertDoor


class InspectionDoor(ExpertDoor):
    """The calls about an engine's intervention."""

    def set_intervention_state(self, state: Any) -> None:
        """Give the intervention another state, from the next step on; nothing is compiled.

        It concerns running requests, too: give it between calls, to have all of an answer under one
        state. What the prefix cache holds is forgotten.

        Args:
            state: a tree of the same structure, shapes and dtypes as the one that it replaces.

        Raises:
            TypeError: a leaf is no array.
            ValueError: a leaf differs, which is named; or the engine was made without
                `intervention`.
        """
        inspection = self._handle.loaded.inspection
        self._handle.driver.call(lambda: inspection.replace_state(state))
