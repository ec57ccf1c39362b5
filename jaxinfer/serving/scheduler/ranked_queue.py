"""A queue in order of rank, out of whose middle anything can be taken."""

import heapq
from collections.abc import Iterator

from jaxinfer.serving.requests.request import Rank

_SPARE_ENTRIES = 64


_MOST_LEVELS = 8
TURNS_A_LEVEL = 64


def fair_urgency(priority: int, number: int) -> int:
    """What stands for a priority where no request may starve.

    A request of one level more is treated as if it had come `TURNS_A_LEVEL` requests later: as many
    later ones overtake it, and then it is their turn to wait. Beyond 8 levels up or down nothing
    changes, so that 1024 later requests overtake one at most.

    Args:
        priority: as the caller gave it.
        number: how many requests came before.
    """
    level = max(-_MOST_LEVELS, min(_MOST_LEVELS, priority))
    return number + TURNS_A_LEVEL * level


class RankedQueue[T]:
    """Items by key, each with a rank of its own. Not thread-safe.

    Adding, removing and finding the first cost little however many items there are: a heap has the
    order, and forgets what was removed when that comes to its top.
    """

    def __init__(self) -> None:
        self._items: dict[str, tuple[Rank, T]] = {}
        self._heap: list[tuple[Rank, str]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[T]:
        """Items by rank, as they are now."""
        return iter([item for _, item in sorted(self._items.values(), key=lambda pair: pair[0])])

    def get(self, key: str) -> T | None:
        """The item of that key."""
        found = self._items.get(key)
        return None if found is None else found[1]

    def add(self, key: str, rank: Rank, item: T) -> None:
        """Let an item stand here; its key and its rank are not in use."""
        self._items[key] = rank, item
        if len(self._heap) > 2 * len(self._items) + _SPARE_ENTRIES:
            self._heap = [(known, name) for name, (known, _) in self._items.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (rank, key))

    def remove(self, key: str) -> T:
        """Take an item out.

        Raises:
            KeyError: it is not here.
        """
        return self._items.pop(key)[1]

    def first(self) -> T:
        """The item of the lowest rank.

        Raises:
            IndexError: there is none.
        """
        while True:
            rank, key = self._heap[0]
            if key in self._items and self._items[key][0] == rank:
                return self._items[key][1]
            heapq.heappop(self._heap)
