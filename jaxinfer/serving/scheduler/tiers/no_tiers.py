"""What the scheduler asks of prefix tiers, answered by an engine without any."""

from typing import Protocol

from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.tiers.prefill_counts import PrefillCounts


class Planner(Protocol):
    """`StepPlanner.schedule`."""

    def __call__(self, max_tokens: int | None = None) -> Schedule | None:
        """Plan a step of at most so many tokens; None if nothing can run."""
        ...


class NoTiers:
    """An engine without tiers: evicted blocks are lost, and nothing is fetched."""

    def watch(self, counts: PrefillCounts) -> None:
        """Nothing depends on the speed of prefills."""

    def around(self, plan: Planner) -> Planner:
        """How steps are planned."""
        return plan

    def release_all(self) -> None:
        """Nothing is fetched."""

    def await_arrival(self) -> bool:
        """Nothing will arrive."""
        return False

    def settle(self) -> None:
        """Nothing is on its way."""

    def close(self, *, keep: bool) -> None:
        """There are no threads to end."""

    def counts(self) -> TierCounts | None:
        """There is nothing to count."""
        return None

    def end_lasting(self) -> None:
        """No block outlives the engine."""

    def was_overtaken(self, request: Request) -> bool:
        """No request waits for blocks while others go on."""
        return False

    def check_invariants(self, requests: list[Request]) -> None:
        """Nothing is held."""
