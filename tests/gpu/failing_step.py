"""Makes a step fail for real: the device runs out of memory and the donated pages are gone."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.serving.runner.runner import Runner


def fail_in_the_third_step(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Break the third launch from now on; returns the schedules launched, filled as they come."""
    launch, schedules = runner.launch, []

    def fail_once(schedule: Any) -> Any:
        schedules.append(schedule)
        step = launch(schedule)
        if len(schedules) == 3:
            for pages in jax.tree.leaves(runner.resident.kv):
                pages.delete()  # as a step that raises leaves the pages it was given
            jnp.zeros(2**39, jnp.float32).block_until_ready()  # 2 TiB
        return step

    monkeypatch.setattr(runner, "launch", fail_once)
    return schedules
