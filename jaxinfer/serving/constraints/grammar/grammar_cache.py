"""Compiled grammars, the most recently used ones, within a bound on their memory."""

import threading
from collections import OrderedDict
from typing import Any

from jaxinfer.serving.constraints.grammar.matcher import Grammar
from jaxinfer.structured_outputs import StructuredOutputsParams

CACHE_BYTES = 1 << 26
"""Most memory that an engine's compiled grammars take, by `Grammar.num_bytes`."""


class GrammarCache:
    """A least-recently-used cache, without grammars over `max_bytes`; any thread may use it.

    Running requests' matchers keep a grammar that is dropped alive.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[Any, ...], Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0
        """Memory of the cached grammars, in bytes."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, given: StructuredOutputsParams) -> Grammar | None:
        """The compiled grammar, if it is there; it is now the most recently used."""
        key = _key(given)
        with self._lock:
            grammar = self._kept.get(key)
            if grammar is not None:
                self._kept.move_to_end(key)
            return grammar

    def put(self, given: StructuredOutputsParams, grammar: Grammar) -> None:
        """Keep a grammar; drop the least recently used ones if the bound is exceeded."""
        key = _key(given)
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = grammar
            self.num_bytes += grammar.num_bytes
            while self.num_bytes > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self.num_bytes -= dropped.num_bytes


def _key(given: StructuredOutputsParams) -> tuple[Any, ...]:
    """The cache key: everything that a compiled grammar depends on."""
    return given.kind, given.value, given.alternative
