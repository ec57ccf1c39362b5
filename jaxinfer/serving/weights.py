"""An engine's weights, and their exchange for a trainer's between two steps."""

from collections.abc import Callable
from typing import Any

from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.mapping import ParamsMapping, check_mapping, quantizing_mapping
from jaxinfer.rollouts.trees import leaves_by_path, nested
from jaxinfer.serving.driver.pauses import InFlightPolicy, check_in_flight
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.runner.device_params import PlacedParams, check_like


class Weights:
    """What `LLM.weights` and `AsyncLLM.weights` are.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def version(self) -> int:
        """How often the weights have been swapped."""
        return self._handle.weight_version

    def update(
        self, params: Any, mapping: ParamsMapping | None = None, in_flight: InFlightPolicy = "keep"
    ) -> None:
        """Swap the weights between two steps; the prefix cache forgets everything.

        Args:
            params: any tree, as in `LLM`. Without a mapping its arrays must lie as the steps need
                them; they are used as they are and stay the caller's: the engine never donates
                them, and they must not be deleted while it uses them. An engine with
                `pipeline_parallel_size` copies them to its stages.
            mapping: copies them, in a program for each stage, into arrays of the engine's own, in
                the memory of its last ones if these were its own, too. The caller's are free
                afterwards.
            in_flight: running requests go on with the new weights and the keys and values that they
                have ("keep"), end before ("wait"), or end at once with the reason "abort".

        Raises:
            ValueError: names the first path, shape, dtype or sharding that differs. Nothing has
                changed.
            TypeError: a leaf is no array.
            StepError: the device failed while it wrote; the engine is dead.
        """
        self._handle.driver.call(self._swap(params, mapping, in_flight))

    async def update_async(
        self, params: Any, mapping: ParamsMapping | None = None, in_flight: InFlightPolicy = "keep"
    ) -> None:
        """`update`, without blocking the event loop."""
        await self._handle.driver.call_async(self._swap(params, mapping, in_flight))

    def maker(
        self, given: Callable[[], Any] | None, mapping: ParamsMapping | None
    ) -> Callable[[], Any] | None:
        """What makes the parameters of each update, checked, for `Follower.follow`.

        Args:
            given: returns a trainer's; None if there are none.
            mapping: of these.
        """
        return None if given is None else lambda: self._checked(given(), mapping)

    def _checked(self, tree: Any, mapping: ParamsMapping | None) -> Any:
        """A trainer's parameters as `Steppable.update_params` takes them.

        Raises:
            ValueError: names the first path, shape, dtype or sharding that differs.
            TypeError: it is no tree, a leaf is no array, or the mapping is none.
        """
        check_mapping(mapping)
        loaded = self._handle.loaded
        wanted = loaded.replicas[0].runner.wanted_params
        leaves = leaves_by_path(tree)
        if loaded.placed_experts is not None:
            if mapping is not None:
                raise ValueError("with enable_eplb weights come without mapping; leave it out")
            return loaded.placed_experts.written(nested(leaves))
        if mapping is None:
            mapping = quantizing_mapping(leaves, loaded.model_config)
        if mapping is not None:
            writer = MappedParams(tree, mapping)
            writer.check(wanted)
            return writer
        params = nested(leaves)
        if len(loaded.replicas[0].runner.programs.stages) > 1:
            check_like(params, wanted)
            return PlacedParams(params)
        check_like(params, wanted, placed=len(loaded.replicas) == 1)
        return params

    def _swap(
        self, tree: Any, mapping: ParamsMapping | None, in_flight: InFlightPolicy
    ) -> Callable[[], None]:
        """The action that swaps weights in the engine's thread; raises as `update`, at once."""
        driver = self._handle.driver
        check_in_flight(in_flight)
        params = self._checked(tree, mapping)
        return lambda: driver.pauses.update_params(params, in_flight)
