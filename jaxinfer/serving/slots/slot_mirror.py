"""A host copy of each running sequence's block table and sampling row, extended, never rebuilt.

A decode step of many long sequences would spend its time turning Python lists into arrays. Tables
only grow while a request keeps running, so a row of NumPy memory per slot is brought up to date by
the blocks that are new, and a batch is one fancy index.
"""

from collections.abc import Callable

import numpy as np

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.sampling.layout import MODES
from jaxinfer.serving.slots.row_sampling import RowSampling, prepare_row


class SlotMirror:
    """One row per slot; row `num_slots` stands for padding and for rows that do not sample.

    Args:
        prepare: turns a request into what its sampling takes at each step (`prepare_row`).

    Attributes:
        tables: int32 ``[num_slots + 1, width]``; entries past a table's length are stale or 0,
            and always valid block ids.
        scalars: int32 ``[num_slots + 1, columns]`` as `SamplingArrays.scalars`, position unset.
        levels: ``[num_slots + 1]`` index in `MODES` of the mode that the slot's row needs.
        truncates: bool ``[num_slots + 1]``, whether it has `top_k` or `top_p`.
        sampling: of each slot's request; the last entry is for padding rows.
        new_holders: requests by slot that have come to hold it since `take_new_holders`.
        num_loads: how often a slot was given a new holder, or its holder began anew.
    """

    def __init__(
        self, num_slots: int, width: int, prepare: Callable[[Request], RowSampling]
    ) -> None:
        self.num_slots = num_slots
        self._prepare = prepare
        self.tables = np.zeros((num_slots + 1, width), np.int32)
        padding = prepare_row(
            SamplingParams(temperature=0.0), seed=0, vocab_size=1, prompt_token_ids=[]
        )
        self.sampling = [padding] * (num_slots + 1)
        self.scalars = np.repeat(padding.scalars[None], num_slots + 1, axis=0)
        self.levels = np.zeros(num_slots + 1, np.int8)
        self.truncates = np.zeros(num_slots + 1, np.bool_)
        self._holders: list[Request | None] = [None] * num_slots
        self._admissions = [0] * num_slots
        self._lengths = [0] * num_slots
        # Slots of requests whose mode gets cheaper once min_tokens are out.
        self._changing: set[int] = set()
        self.new_holders: dict[int, Request] = {}
        self.num_loads = 0

    def clear(self) -> None:
        """Forget every slot, after the cache was rebuilt."""
        self.tables[:] = 0
        self._holders = [None] * self.num_slots
        self.new_holders.clear()

    def take_new_holders(self) -> dict[int, Request]:
        """`new_holders`, which starts anew."""
        taken, self.new_holders = self.new_holders, {}
        return taken

    def update(self, request: Request, position: int) -> None:
        """Bring a running request's row up to date.

        Args:
            request: holds a slot.
            position: of the token that it samples next, if it does.

        Raises:
            ValueError: it is not running, or its sampling parameters can't be prepared.
        """
        slot = request.slot
        if slot is None:
            raise ValueError(f"request {request.request_id!r} holds no slot: it is not running")
        blocks = request.blocks
        if self._holders[slot] is not request or self._admissions[slot] != blocks.num_admissions:
            self._load(slot, request)
        table = blocks.table
        known = self._lengths[slot]
        if len(table) != known:
            self.tables[slot, known : len(table)] = table[known:]
            self._lengths[slot] = len(table)
        if slot in self._changing:
            mode = self.sampling[slot].mode(position - request.num_prompt_tokens)
            self.levels[slot] = MODES.index(mode)

    @property
    def is_changing(self) -> bool:
        """Whether some running request's mode may change from one of its rows to the next."""
        holders = self._holders
        ended = {i for i in self._changing if (held := holders[i]) is None or held.slot != i}
        self._changing -= ended
        return bool(self._changing)

    def _load(self, slot: int, request: Request) -> None:
        """Take over what a slot's new holder brings."""
        self._holders[slot] = None  # what follows may raise half-way
        self.sampling[slot] = self._prepare(request)
        self.scalars[slot] = self.sampling[slot].scalars
        self.truncates[slot] = self.sampling[slot].params.truncates
        self._admissions[slot] = request.blocks.num_admissions
        self._lengths[slot] = 0
        self._changing.discard(slot)
        if request.params.min_tokens:
            self._changing.add(slot)
        self.levels[slot] = MODES.index(self.sampling[slot].mode(0))
        self._holders[slot] = request
        self.num_loads += 1
        self.new_holders[slot] = request
