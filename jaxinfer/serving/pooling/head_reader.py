"""Reads rows of a running engine's head, for the logits of a few tokens."""

from collections.abc import Sequence

from jaxinfer.errors import StepError
from jaxinfer.model.head_rows import head_rows
from jaxinfer.serving.pooling.task import HeadRows
from jaxinfer.serving.replicas.started_replica import StartedReplica

_MOST_SETS = 16  # whose rows are kept, up to 16 MiB each for 1024 labels of an 8B model


class HeadReader:
    """Copies rows of the head to the host, once for each set of tokens and version of the weights.

    Used by the engine's thread only, between whose steps the weights change.

    Args:
        replicas: of the engine; all have the same weights.
    """

    def __init__(self, replicas: Sequence[StartedReplica]) -> None:
        self._replicas = replicas
        self._rows: dict[tuple[int, ...], HeadRows] = {}
        self._version = 0

    def check_one_process(self) -> None:
        """Refuse an engine whose head this process holds in part; from any thread.

        Raises:
            ValueError: the engine runs on several processes.
        """
        head = self._replicas[0].runner.resident.head
        norm = None if head is None else head["model"]["norm"]
        if norm is not None and not norm.is_fully_addressable:
            raise ValueError(
                "the head lies on several processes, and this call reads it in one: decide, "
                "classify, rerank and score pairs of texts on an engine of one process"
            )

    def read(self, token_ids: tuple[int, ...]) -> HeadRows:
        """The rows of tokens, ids in [0, V).

        Raises:
            ValueError: the engine runs on several processes.
            StepError: the weights are not on the devices any more.
        """
        version = max(each.engine.weight_version for each in self._replicas)
        if version != self._version:
            self._rows.clear()
            self._version = version
        if (known := self._rows.get(token_ids)) is None:
            self.check_one_process()
            head = self._replicas[0].runner.resident.head
            if head is None:
                raise StepError("the engine fell asleep before logits were computed; call again")
            known = HeadRows(head_rows(head, token_ids), version)
            while len(self._rows) >= _MOST_SETS:
                self._rows.pop(next(iter(self._rows)))  # the oldest
            self._rows[token_ids] = known
        return known
