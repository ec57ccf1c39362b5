"""A queue in order of rank, from which any item can be removed."""

import heapq

from jaxinfer.serving.requests.request import Rank

_SPARE_ENTRIES = 64


_MOST_LEVELS = 8
TURNS_A_LEVEL = 64


def fair_urgency(priority: int, number: int) -> int:
    """The urgency that replaces a priority under a fair policy, so that no request starves.

    A request of one level more is treated as if it had come `TURNS_A_LEVEL` requests later: as many
    later ones overtake it, and then it is their turn to wait. Beyond 8 levels up or down nothing
    changes, so that 1024 later requests overtake one at most.

    Args:
        number: how many requests came before.
    """
    level = max(-_MOST_LEVELS, min(_MOST_LEVELS, priority))
    return number + TURNS_A_LEVEL * level


class RankedQueue[T](dict[str, T]):
    """A dictionary of items, each with a rank; filled and emptied by `add` and `remove` alone.

    Adding, removing and finding the first are cheap for any number of items: a heap has the order,
    and entries of removed items are dropped when they reach its top. Not thread-safe.

    Attributes:
        num_added: how many items were ever added.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_added = 0
        self._ranks: dict[str, Rank] = {}
        self._heap: list[tuple[Rank, str]] = []

    def by_rank(self) -> list[T]:
        """The items, lowest rank first."""
        return [self[key] for key in sorted(self, key=self._ranks.__getitem__)]

    def add(self, key: str, rank: Rank, item: T) -> None:
        """Add an item; its key and its rank are not in use."""
        self[key], self._ranks[key] = item, rank
        self.num_added += 1
        if len(self._heap) > 2 * len(self) + _SPARE_ENTRIES:
            self._heap = [(known, name) for name, known in self._ranks.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (rank, key))

    def remove(self, key: str) -> T:
        """Remove and return an item; KeyError if there is none."""
        del self._ranks[key]
        return self.pop(key)

    def first(self) -> T:
        """The item of the lowest rank; IndexError if the queue is empty."""
        while True:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                return self[key]
            heapq.heappop(self._heap)
