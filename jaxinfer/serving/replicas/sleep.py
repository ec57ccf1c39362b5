"""Puts all replicas of a group to sleep, or none of them."""

from collections.abc import Sequence

from jaxinfer.serving.driver.owner_thread import Action
from jaxinfer.serving.replicas.front_queue import Member


def sleep_all(members: Sequence[Member], *, keep_params: bool) -> None:
    """Free the device memory of all replicas; if one of them can't, the others wake up.

    A replica that then can't wake up gets `Replica.failure`; so does one that fails to drop its
    weights after others have dropped theirs, in which case the others sleep.

    Raises:
        RuntimeError: names the replica that can't sleep, and why. None sleeps.
    """
    for member in members:
        _try(member, member.replica.engine.prepare_sleep)
    asleep: list[Member] = []
    for member in members:
        engine = member.replica.engine
        try:
            _try(member, lambda engine=engine: engine.sleep(keep_params=keep_params))
        except RuntimeError as error:
            if keep_params or not asleep:
                _wake(asleep)
                raise
            member.replica.failure = error
        else:
            asleep.append(member)


def _try(member: Member, action: Action) -> None:
    try:
        member.replica.call(action)
    except Exception as error:
        raise RuntimeError(
            f"replica {member.index} can't sleep, so that none does: "
            f"{type(error).__name__}: {error}"
        ) from error


def _wake(members: Sequence[Member]) -> None:
    for member in members:
        engine = member.replica.engine
        try:
            member.replica.call(engine.wake_params)
            member.replica.call(engine.wake_cache)
        except Exception as error:
            member.replica.failure = error
