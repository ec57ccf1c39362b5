"""The program that counts the known tokens of requests that get a slot."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.sampling.slot_state import count_tokens
from jaxinfer.serving.slots.slot_updates import SLOTS_AN_UPDATE, TOKENS_AN_UPDATE


@dataclass(frozen=True)
class CountTokensKey:
    """The key of a program that counts the known tokens of slots' new holders."""

    slots: int
    tokens: int


class CountTokensKind(ProgramKind[CountTokensKey]):
    """Programs that count known tokens, keyed by numbers of slots and tokens; not warmed up."""

    key_type = CountTokensKey
    uses_pages = False
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[CountTokensKey]:
        """One key, for the size of the host's updates."""
        return [CountTokensKey(SLOTS_AN_UPDATE, TOKENS_AN_UPDATE)]

    def program(self, programs: Programs, key: CountTokensKey) -> Program:
        """The program of `slot_state.count_tokens`."""
        run = functools.partial(count_tokens, axis=programs.context.axis)
        counts = programs.slot_state.token_counts
        arguments = (counts, programs.whole((key.slots,)), programs.whole((3, key.tokens)))
        return programs.sharded("count_tokens", run, arguments, counts, donate=(0,))
