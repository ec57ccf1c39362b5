"""An engine's capture and intervention, as calls use them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import psutil

from jaxinfer.capture import CapturedTokens, check_tokens
from jaxinfer.checks import show
from jaxinfer.errors import CapacityError
from jaxinfer.model.intervention import as_arrays
from jaxinfer.serving.engine.steppable import Steppable
from jaxinfer.serving.inspection.captured_reader import CapturedReader
from jaxinfer.serving.inspection.inspection import Inspection, layers_of
from jaxinfer.serving.inspection.intervention_state import InterventionState
from jaxinfer.serving.inspection.no_inspection import NO_CAPTURE, NO_INTERVENTION, NoInspection
from jaxinfer.serving.replicas.group import ReplicaGroup
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.requests.captured import WantedCapture
from jaxinfer.serving.requests.new_request import NewRequest

_LONGER_THAN_SALTS = "intervened" * 128
"""Longer than any salt that a caller may give, so that no prompt of another has the same."""


class EngineInspection:
    """Lets requests ask for activations and for changes.

    Args:
        inspection: what the engine was made with.
        engine: steps the replicas.
        replicas: all of them, not running yet.
    """

    def __init__(
        self, inspection: Inspection, engine: Steppable, replicas: Sequence[StartedReplica]
    ) -> None:
        self._inspection = inspection
        self._engine = engine
        self._replicas = replicas
        self._states: list[InterventionState] = []
        if (capture := inspection.capture) is not None:
            for each in replicas:
                reader = CapturedReader(each.runner, each.runner.programs, capture)
                each.scheduler.watch_blocks(reader.read, reader.keep)
        if (intervention := inspection.intervention) is not None:
            leaves = jax.tree.leaves(intervention.state)
            self._states = [
                InterventionState(each.runner, each.runner.programs, leaves) for each in replicas
            ]

    def requests(
        self, requests: list[NewRequest], capture: Any, intervene: Any
    ) -> list[NewRequest]:
        """Requests with what a call asks for, one for all or one for each.

        Raises:
            TypeError: a value has the wrong type.
            ValueError: a value is out of range, the numbers differ, or the engine has neither.
            CapacityError: the activations may be more than host memory holds.
        """
        tokens: list[CapturedTokens | None] = [
            self._tokens(each) for each in _for_each("capture", capture, len(requests))
        ]
        changes = [self._change(each) for each in _for_each("intervene", intervene, len(requests))]
        made = requests
        if any(tokens) or any(changes):
            made = [_asking(request, tokens[i], changes[i]) for i, request in enumerate(requests)]
        self._check_room(made)
        return made

    def replace_state(self, state: Any) -> None:
        """Use another state in steps from now on; in the engine's thread.

        The prefix cache is invalidated: blocks of changed tokens were computed with the old state.

        Raises:
            ValueError: there is no intervention, or a leaf is missing, unknown or different.
        """
        leaves = self.checked_state(state)
        before = self._states[0].leaves
        try:
            self._replace_all(leaves)
        except Exception:
            self._replace_all(before)  # no replica has another state than the others
            raise

    def _replace_all(self, leaves: Sequence[np.ndarray]) -> None:
        """Use other leaves in every replica, each in its thread."""

        def replace(kept: InterventionState, replica: StartedReplica) -> None:
            kept.replace(leaves)
            replica.scheduler.invalidate_prefix_cache()

        pairs = zip(self._states, self._replicas, strict=True)
        actions = [
            lambda kept=kept, replica=replica: replace(kept, replica) for kept, replica in pairs
        ]
        if isinstance(self._engine, ReplicaGroup):
            self._engine.call_each(actions)
            return
        for action in actions:
            action()

    def checked_state(self, state: Any) -> list[np.ndarray]:
        """A new state's leaves on the host.

        Raises:
            TypeError: a leaf is no array.
            ValueError: there is no intervention, or a leaf is missing, unknown or different.
        """
        if self._inspection.intervention is None:
            raise ValueError(NO_INTERVENTION)
        old = jax.tree_util.tree_flatten_with_path(self._inspection.intervention.state)
        new = jax.tree_util.tree_flatten_with_path(as_arrays(state))
        wanted, given = dict(old[0]), dict(new[0])
        for path in [*wanted, *given]:
            name = f"state{jax.tree_util.keystr(path)}"
            if path not in given:
                raise ValueError(f"{name} is missing")
            if path not in wanted:
                raise ValueError(f"{name} is no part of the intervention's state")
            before, after = wanted[path], given[path]
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                raise ValueError(
                    f"{name} must be {before.dtype} of shape {before.shape}, got {after.dtype} of "
                    f"shape {after.shape}"
                )
        if old[1] != new[1]:
            raise ValueError(f"the state must be a tree like {old[1]}, got {new[1]}")
        return [np.array(leaf) for leaf in given.values()]

    def _tokens(self, given: Any) -> CapturedTokens | None:
        """The tokens whose activations a request gets; None for none."""
        if given is False or given is None:
            return None
        if self._inspection.capture is None:
            raise ValueError(NO_CAPTURE)
        tokens = self._inspection.capture.tokens if given is True else given
        return check_tokens(tokens)

    def _change(self, given: Any) -> bool:
        """Whether a request is changed."""
        if not isinstance(given, bool):
            raise TypeError(f"intervene must be True or False, got {show(given)}")
        if given and self._inspection.intervention is None:
            raise ValueError(NO_INTERVENTION)
        return given

    def _check_room(self, requests: Sequence[NewRequest]) -> None:
        """CapacityError if the activations of all may be more than host memory holds."""
        if self._inspection.capture is None or not any(each.capture for each in requests):
            return
        runner = self._replicas[0].runner
        context = runner.programs.context
        capture, model = self._inspection.capture, context.config
        size = 4 * model.vocab_size
        if capture.what != "logits":
            layers = layers_of(capture, model)
            size = len(layers) * model.hidden_size * runner.programs.dtype.itemsize
        needed = size * sum(_most_tokens(each, runner.max_model_len) for each in requests)
        free = psutil.virtual_memory().available
        if needed > free:
            raise CapacityError(
                f"the captured activations of these requests may take {needed / 2**30:.1f} GiB of "
                f"host memory, and {free / 2**30:.1f} are free; capture fewer layers or tokens, "
                "lower max_tokens, or pass fewer prompts at once"
            )


def _asking(request: NewRequest, tokens: CapturedTokens | None, changed: bool) -> NewRequest:
    prompt, wanted = request.prompt, None if tokens is None else WantedCapture(tokens)
    if changed:  # its keys and values are others than those of the same tokens elsewhere
        salt = _LONGER_THAN_SALTS + (prompt.cache_salt or "")
        prompt = dataclasses.replace(prompt, cache_salt=salt)
    return dataclasses.replace(request, prompt=prompt, capture=wanted, intervene=changed)


def _most_tokens(request: NewRequest, max_model_len: int) -> int:
    """The most tokens whose activations a request may get, of all its completions."""
    prompt = len(request.prompt.token_ids)
    room = max_model_len - prompt
    answer = room if request.params.max_tokens is None else min(request.params.max_tokens, room)
    if request.capture is None:
        return 0
    counts = {"prompt": prompt, "last": 1, "generated": answer, "all": prompt + answer}
    return counts[request.capture.tokens] * request.params.n


def start_inspection(
    inspection: Inspection, engine: Steppable, replicas: Sequence[StartedReplica]
) -> EngineInspection | NoInspection:
    """What calls ask of an engine; see `EngineInspection`."""
    if not inspection.is_wanted:
        return NoInspection()
    return EngineInspection(inspection, engine, replicas)


def _for_each(name: str, given: Any, count: int) -> Sequence[Any]:
    """A value for each request."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:
        raise ValueError(
            f"{name} has {len(given)} entries for a call of {count}; give one for each prompt"
        )
    return given
