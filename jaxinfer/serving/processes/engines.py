"""Keeps the engines of several processes in step: each repeats process 0's calls in order.

A step is deterministic given the calls before it, so only calls are sent: requests with their
seeds, aborts, steps, resets of the prefix cache and swaps of weights. Decisions that depend on time
or on threads are made on process 0, between its steps.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from jaxinfer.errors import JaxinferError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.engine.engine import Engine
from jaxinfer.serving.engine.metrics import RequestCounts
from jaxinfer.serving.processes.group import ProcessGroup
from jaxinfer.serving.processes.requests import request_from_json, request_to_json
from jaxinfer.serving.requests.new_request import NewRequest
from jaxinfer.serving.runner.device_params import ParamsWriter


class Leader:
    """Process 0's engine, which takes the requests and tells the others: a `Steppable`.

    Args:
        seed: of the engine; requests without a seed get theirs here.
    """

    def __init__(self, engine: Engine, group: ProcessGroup, seed: int) -> None:
        self._engine = engine
        self._group = group
        # The same draws as Engine's own, so that the number of processes changes no token.
        self._request_seeds = random.Random(seed)
        self._takes_updates: list[bool] = []  # for each process that follows

    @property
    def has_unfinished(self) -> bool:
        """True if a request is running or waiting, or an output has not been taken."""
        return self._engine.has_unfinished

    @property
    def failure(self) -> JaxinferError | None:
        """The error that ended this process's engine, or None; see `Engine.failure`."""
        return self._engine.failure

    def counts(self) -> RequestCounts:
        """As `Engine.counts`, of this process; the others' are the same."""
        return self._engine.counts()

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs of requests without a sink, since the last call."""
        return self._engine.take_outputs()

    def add(self, request: NewRequest) -> None:
        """Enqueue a request on all processes, see `Engine.add`; one refused here is not sent."""
        self._group.check()
        seed = self._request_seeds.getrandbits(63)
        if request.params.seed is None:
            request = dataclasses.replace(request, params=request.params.clone(seed=seed))
        self._engine.add(request)
        self._group.call({"kind": "add", "request": request_to_json(request)})

    def abort(self, request_id: str) -> bool:
        """End a request on all processes, see `Engine.abort`; also after another one has failed."""
        found = self._engine.abort(request_id)
        if found and not self._group.is_ending:
            self._group.call({"kind": "abort", "id": request_id})
        return found

    def step(self) -> None:
        """Run one step on all processes at once; see `Engine.step`.

        Raises:
            DistributedError: another process has failed.
        """
        self._engine.check_alive()
        self._await_followers()
        self._group.call({"kind": "step"})
        with self._group.reporting_failures():
            self._engine.step()

    def update_params(self, params: Any) -> None:
        """Swap the weights on all processes; each takes its own part of the new ones.

        No process changes its weights before all have checked that the new ones match.

        Raises:
            ValueError: the weights don't fit, or another process's `follow` has no `new_params`.
            DistributedError: another process's weights don't fit, or are mapped in another way;
                all processes raise it, and none has changed.
        """
        self._await_followers()
        for process_id, takes in enumerate(self._takes_updates, start=1):
            if not takes:
                raise ValueError(
                    f"process {process_id} has no new weights to take: call its "
                    "follow(new_params=...) with a function that returns them"
                )
        self._group.call({"kind": "update_params"})
        with self._group.reporting_failures():
            _require_same_update(self._group, params)
            self._engine.update_params(params)

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache on all processes before their next step."""
        self._group.check()
        self._engine.reset_prefix_cache()
        self._group.call({"kind": "reset_prefix_cache"})

    @property
    def can_sleep(self) -> bool:
        """False: processes can't rebuild their caches in step."""
        return False

    def sleep(self, *, keep_params: bool) -> None:
        """Refuse: processes can't sleep; see `can_sleep`."""
        raise NotImplementedError("several processes can't sleep")

    def wake_params(self) -> None:
        """Nothing sleeps, as `sleep` is refused."""

    def wake_cache(self) -> None:
        """Nothing sleeps, as `sleep` is refused."""

    def close(self) -> None:
        """Close this process's engine (see `Engine.close`); the others stop following."""
        self._group.close()
        self._engine.close()

    def _await_followers(self) -> None:
        """Wait until all others follow, with a notice; a step would wait for them silently."""
        for i in range(1 + len(self._takes_updates), self._group.num_processes):
            notice = f"Waiting for process {i} to call LLM.follow()"
            self._takes_updates.append(self._group.get(f"following/{i}", i, notice=notice))


class Follower:
    """Another process's engine, which does what process 0's does and takes no requests."""

    def __init__(self, engine: Engine, group: ProcessGroup) -> None:
        self._engine = engine
        self._group = group

    def follow(self, new_params: Callable[[], Any] | None) -> None:
        """Repeat process 0's calls until it closes its engine.

        Args:
            new_params: called when it swaps the weights; returns them as this process holds them.

        Raises:
            DistributedError: another process has failed.
            StepError: a device step failed here.
            KeyboardInterrupt: Ctrl-C; all processes end.
        """
        with self._group.reporting_failures():
            self._group.put(f"following/{self._group.process_id}", new_params is not None)
            while self._do(self._group.next_call(), new_params):
                pass

    def close(self) -> None:
        """Close this process's engine; before the end of `follow`, the others end too."""
        self._group.close()
        self._engine.close()

    def _do(self, message: dict[str, Any], new_params: Callable[[], Any] | None) -> bool:
        """Carry out a call of process 0; returns False after the last one."""
        match message["kind"]:
            case "step":
                self._engine.step()
            case "add":
                request = request_from_json(message["request"])
                self._engine.add(dataclasses.replace(request, kind="final", sink=_ignore))
            case "abort":
                self._engine.abort(message["id"])
            case "reset_prefix_cache":
                self._engine.reset_prefix_cache()
            case "update_params" if new_params is not None:
                params = new_params()
                _require_same_update(self._group, params)
                self._engine.update_params(params)
            case _:
                return False
        return True


def _require_same_update(group: ProcessGroup, params: Any) -> None:
    """Raise DistributedError on all processes unless each would run the same conversion.

    Trees that are used as they are need none; each process has checked its own.
    """
    is_mapped = isinstance(params, ParamsWriter)
    group.require_same(
        {"whether new weights are mapped": is_mapped} | (params.describe() if is_mapped else {}),
        fix="have update_params and follow(new_params=...) give the same tree and mapping",
    )


def _ignore(output: RequestOutput) -> None:
    """Drop an output: outputs are read on process 0."""
