"""Compiles grammars in threads of its own, within limits and a deadline, and caches them."""

import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Collection, Iterable
from typing import Any

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.constraints.grammar.backend import llguidance
from jaxinfer.serving.constraints.grammar.grammar_cache import CACHE_BYTES, GrammarCache
from jaxinfer.serving.constraints.grammar.grammar_text import grammar_text
from jaxinfer.serving.constraints.grammar.matcher import Grammar, one_line
from jaxinfer.serving.constraints.grammar.schemas.errors import grammar_error
from jaxinfer.serving.constraints.grammar.vocabulary import grammar_vocabulary
from jaxinfer.structured_outputs import StructuredOutputsParams

DEADLINE_S = 10.0
"""Seconds that a request waits for its grammar before it is refused."""

_NUM_THREADS = 2
# The library's defaults except the size, which costs the most time, and the text of errors, which
# would repeat the grammar.
_LIMITS = {"max_grammar_size": 250_000, "verbose_errors": False}


class GrammarCompiler:
    """The compiled grammars of one engine, or of several that share a tokenizer.

    Any thread may use it. The limits are on work, not on time, so that a grammar compiles on every
    machine or on none; the deadline is for busy machines.

    Args:
        deadline_s: time limit of `start_all`, in seconds.
        cache_bytes: most memory that compiled grammars take.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        eos_token_ids: Collection[int],
        *,
        deadline_s: float = DEADLINE_S,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._deadline_s = deadline_s
        self.cache = GrammarCache(cache_bytes)
        self._vocabulary_lock = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, "jaxinfer-grammars")

    def get(self, given: StructuredOutputsParams) -> Grammar:
        """The compiled grammar; compiled by the caller's thread if it is not there.

        Raises:
            ValueError: it is no grammar, or too large; one line that names the field.
            MissingPackageError: llguidance is not installed.
        """
        grammar = self.cache.get(given)
        if grammar is None:
            grammar = self._compile(given)
            self.cache.put(given, grammar)
        return grammar

    def start_all(
        self, grammars: Iterable[StructuredOutputsParams | None]
    ) -> "concurrent.futures.Future[None] | None":
        """Compile several grammars in other threads: see `ConstraintSource.start_all`.

        When the deadline has passed, the result is a ValueError.
        """
        unknown = {each for each in grammars if each and self.cache.get(each) is None}
        if not unknown:
            return None
        outcome: concurrent.futures.Future[None] = concurrent.futures.Future()
        jobs = [self._threads.submit(self.get, given) for given in unknown]
        timer = threading.Timer(self._deadline_s, self._give_up, (outcome, jobs))
        timer.daemon = True
        timer.start()
        outcome.add_done_callback(lambda _: timer.cancel())

        def note(done: "concurrent.futures.Future[Grammar]") -> None:
            with contextlib.suppress(
                concurrent.futures.InvalidStateError, concurrent.futures.CancelledError
            ):
                if (error := done.exception()) is not None:
                    outcome.set_exception(error)
                elif all(each.done() for each in jobs):
                    outcome.set_result(None)

        for each in jobs:
            each.add_done_callback(note)
        return outcome

    def close(self) -> None:
        """End the threads once their work is done; safe to repeat."""
        self._threads.shutdown(wait=False)

    def _give_up(
        self,
        outcome: "concurrent.futures.Future[None]",
        jobs: "list[concurrent.futures.Future[Grammar]]",
    ) -> None:
        for job in jobs:
            job.cancel()
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            outcome.set_exception(
                ValueError(
                    f"structured_outputs: the grammar was not compiled within "
                    f"{self._deadline_s:g} s; make it simpler, or try again later"
                )
            )

    @functools.cached_property
    def _vocabulary(self) -> Any:
        return grammar_vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)

    def _compile(self, given: StructuredOutputsParams) -> Grammar:
        text = grammar_text(given)
        with self._vocabulary_lock:  # the first grammar builds it, for all threads
            vocabulary = self._vocabulary
        library = llguidance()
        state = library.LLMatcher(
            vocabulary, text, log_level=0, limits=library.LLParserLimits(**_LIMITS)
        )
        if not state.is_error():
            state.compute_bitmask()  # only here some turn out to be empty, or too large
        if state.is_error():
            message = one_line(grammar_error(text, state.get_error()))
            raise ValueError(f"structured_outputs.{given.kind}: {message}")
        return Grammar(state, text, self._vocab_size, vocabulary.vocab_size)
