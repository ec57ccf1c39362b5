"""A device made of dictionaries: runs schedules as the real runner does, with a toy for a model.

Tokens live in pages, rows read their context through their block tables, and the next token is a
function of that whole context. So a wrong table, a block freed too early or a forgotten token
changes what comes out.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxinfer.serving.requests.request import IN_FLIGHT_TOKEN
from jaxinfer.serving.requests.result import (
    PROMPT_LOGPROBS,
    SCORED,
    StepResult,
    TokenScores,
)
from jaxinfer.serving.requests.scores.scored_range import is_scored_plainly
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.step_masks import StepConstraints

NUM_TOP = 5


def next_token(context: Sequence[int], vocab_size: int) -> int:
    """The toy model's greedy choice: depends on every token of the context and their order."""
    state = 7
    for token_id in context:
        state = (state * 31 + token_id + 1) % 1_000_003
    return state % vocab_size


def continuation(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """What the toy model writes after a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab_size))
    return tokens[len(prompt) :]


class FakeRunner:
    """The toy device: an `Engine`'s runner, which raises where it is told to.

    It also checks what an engine promises its runner: a step that may have masks is read before the
    next but one, and masks in flight are not overwritten.

    Args:
        vocab_size: of the toy model.
        block_size: tokens in a page.
        token_map: from a context, a list of token ids, to the next token, in place of `next_token`.

    Attributes:
        most_unread: launched steps that may be unread when another is launched.
        fail_launches: numbers of launches that raise.
        fail_fetches: numbers of launches whose fetch raises.
        fail_samples: numbers of launches with host-dependent rows whose sampling raises.
        constrained_samples: how many launches had such rows.
        poisoned: request ids whose rows come out with `ok` False.
        draft: from a context and a number, at most so many drafts of what follows.
        launches: the schedules that ran, in order.
        num_resets: how often the cache was rebuilt.
    """

    def __init__(self, *, vocab_size: int, block_size: int, token_map: Any = None):
        self.most_unread = 1
        self.vocab_size = vocab_size
        self.block_size = block_size
        self.fail_launches: set[int] = set()
        self.fail_fetches: set[int] = set()
        self.fail_samples: set[int] = set()
        self.constrained_samples = 0
        self.fail_reset = False
        self.poisoned: set[str] = set()
        self.launches: list[Schedule] = []
        self.num_launches = 0
        self.num_resets = 0
        self.num_compilations = 0
        self.params: Any = None
        self.closed = False
        self.sleeps = False
        self.unread = 0
        self._pages: dict[int, int] = {}
        self._host_pages: dict[int, int] = {}
        self._last_tokens: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._step_masks: list[np.ndarray | None] = []
        self._masks: dict[int, tuple[tuple[int, int], np.ndarray | None]] = {}
        self._next = token_map or (lambda context: next_token(context, vocab_size))
        self.draft: Callable[[Sequence[int], int], list[int]] = lambda context, most: []

    def launch(self, schedule: Schedule) -> Any:
        """Run a schedule on the pages; the handle is for `fetch` or, sampled late, `sample`."""
        number = self.num_launches
        self.num_launches += 1
        _require(
            self.unread <= self.most_unread,
            "a step that may have masks or first tokens stays unread",
        )
        if number in self.fail_launches:
            self._pages.clear()
            raise RuntimeError(f"launch {number} ran out of memory")
        self._copy(self._pages, self._host_pages, schedule.swap_out)
        for device, host in schedule.swap_in:
            self._copy(self._host_pages, self._pages, [(host, device)])
        for row in schedule.rows:
            self._note_holder(row)
        num_positions = schedule.num_steps * (schedule.num_drafts + 1)
        tokens = np.zeros((len(schedule.rows), num_positions), np.int32)
        drafts: list[list[tuple[int, int]]] = []
        table: list[int] = []
        for i, row in enumerate(schedule.rows):
            table = row.request.blocks.table if row.num_fed else table  # a fork reads its leader's
            if schedule.num_drafts:
                gained, of_steps = self._verify_row(row, schedule, i not in schedule.unknown)
                tokens[i, : len(gained)] = gained
                drafts.append(of_steps)
            else:
                tokens[i, : schedule.num_steps] = list(self._run_row(row, schedule, table))
        self._copy(self._pages, self._pages, schedule.block_copies)
        self.launches.append(schedule)
        self._step_masks.append(None)
        self.unread += 1
        ok = np.ones(tokens.shape, bool)
        for i, row in enumerate(schedule.rows):
            ok[i] = row.request.request_id not in self.poisoned
        readouts = _readouts(schedule.rows)
        return number, StepResult(_scores(tokens, ok), readouts, drafts or None)

    def sample(self, step: Any, constraints: StepConstraints) -> Any:
        """Draw the tokens of the last launch again, under these constraints."""
        number, result = step
        schedule = self.launches[-1]
        _require(bool(schedule.host_dependent), "only steps with host-dependent rows are sampled")
        self.constrained_samples += 1
        if number in self.fail_samples:
            self._pages.clear()
            raise RuntimeError(f"sampling {number} ran out of memory")
        for i in schedule.host_dependent:
            row = schedule.rows[i]
            unread = row.request.num_in_flight_tokens - row.num_reserved
            _require(unread <= 0, "earlier tokens are not read yet")
            if row.request.slot is not None:
                self._last_tokens[row.request.slot] = 0  # what samples nothing leaves rubbish
        masks = self._step_masks[-1] = constraints.allowed
        for before in self._step_masks[-self.unread : -1]:
            taken = before is not None and masks is not None and np.shares_memory(before, masks)
            _require(not taken, "masks of a step in flight are overwritten")
        new = {} if masks is None else dict(zip(constraints.masked, masks, strict=False))
        for i, _ in constraints.edits:
            _require(i in schedule.host_dependent, "a row is constrained that waits for nothing")
            row = schedule.rows[i]
            if row.request.slot is None:
                continue
            if i in new:
                self._masks[row.request.slot] = _holder(row), new[i].copy()
            self._sample_allowed(row, result.sampled.tokens[i])
        return step

    def fetch(self, step: Any) -> StepResult:
        """The tokens of a launch."""
        number, result = step
        self.unread -= 1
        if number in self.fail_fetches:
            self._pages.clear()
            raise RuntimeError(f"fetch {number} found a broken device")
        return result

    def sleep(self, *, keep_params: bool) -> None:
        """Forget the pages until `wake_params`."""
        self.sleeps = True
        self.reset_cache()

    def wake_params(self) -> None:
        """End a sleep."""
        self.sleeps = False

    def reset_cache(self) -> None:
        """Forget all pages; raises where `fail_reset` is set."""
        if self.fail_reset:
            raise RuntimeError("no memory left at all")
        self.num_resets += 1
        self.unread = 0
        self._pages.clear()
        self._host_pages.clear()
        self._last_tokens.clear()

    def await_launches(self) -> None:
        """Steps run as they are launched."""

    def update_params(self, params: Any) -> None:
        """Keep a dictionary as `params`; the toy model has no weights."""
        if not isinstance(params, dict):
            raise ValueError("params must be a dict")
        self.params = params

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def _run_row(self, row: ScheduledRow, schedule: Schedule, table: list[int]) -> Iterator[int]:
        slot = _slot(row)
        stop = row.start + row.num_fed
        # The scheduler has moved past the row: what it will sample is not there to be fed.
        fed = np.frombuffer(row.packed_tokens(), np.int32).tolist()
        if schedule.is_decode:
            fed = [self._last_tokens[slot]]
        for step in range(schedule.num_steps):
            if 0 < row.num_reserved <= step:  # padding by now
                yield 0
                continue
            self._write(row, row.start + step, fed)
            token_id = self._next(self._context(table, stop + step))
            if step < row.num_reserved:
                self._last_tokens[slot] = token_id
            fed = [token_id]
            yield token_id

    def _note_holder(self, row: ScheduledRow) -> None:
        """A slot's new holder may sample all tokens."""
        slot = _slot(row)
        if slot not in self._masks or self._masks[slot][0] != _holder(row):
            self._masks[slot] = _holder(row), None

    def _sample_allowed(self, row: ScheduledRow, tokens: np.ndarray) -> None:
        """Draw again, by the last mask that its slot was given, unless that allows all."""
        _, mask = self._masks[_slot(row)]
        if mask is not None and not (mask == -1).all():
            context = self._context(row.request.blocks.table, row.start + row.num_fed)
            tokens[0] = _allowed_token(context, mask)
        self._last_tokens[_slot(row)] = int(tokens[0])

    def _verify_row(
        self, row: ScheduledRow, schedule: Schedule, is_known: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens that a row gains, and of each step its drafts and accepted tokens."""
        slot = _slot(row)
        length = self._lengths[slot] if is_known else row.start + 1
        _require(length <= row.start + 1, "a row may be longer than the scheduler reckons")
        self._lengths[slot] = length
        gained: list[int] = []
        steps: list[tuple[int, int]] = []
        for _ in range(schedule.num_steps):
            if left := row.num_reserved - len(gained):
                most = min(left - 1, schedule.num_drafts)
                sampled, drafted = self._verify(row, most)
                num_accepted = self._accept(row, sampled, drafted)
                gained += sampled[:num_accepted]
                steps.append((len(drafted), num_accepted))
        return gained, steps

    def _verify(self, row: ScheduledRow, most: int) -> tuple[list[int], list[int]]:
        """The tokens sampled after the newest and after each draft, and the drafts."""
        slot, table = _slot(row), row.request.blocks.table
        length, newest = self._lengths[slot], self._last_tokens[slot]
        context = [*self._context(table, length - 1), newest]
        drafts = self.draft(context, most)
        self._write(row, length - 1, [newest, *drafts])
        ends = range(length, length + len(drafts) + 1)
        return [self._next(self._context(table, end)) for end in ends], drafts

    def _accept(self, row: ScheduledRow, sampled: Sequence[int], drafts: Sequence[int]) -> int:
        """How many of the sampled tokens count; the last one is fed next."""
        pairs = zip(sampled, drafts, strict=False)
        agrees = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        num_accepted = 1 + sum(1 for _ in agrees)
        self._last_tokens[_slot(row)] = sampled[num_accepted - 1]
        self._lengths[_slot(row)] += num_accepted
        return num_accepted

    def _write(self, row: ScheduledRow, start: int, token_ids: Sequence[int]) -> None:
        for position, token_id in enumerate(token_ids, start):
            real = self._last_tokens[_slot(row)] if token_id == IN_FLIGHT_TOKEN else token_id
            self._pages[self._place(row.request.blocks.table, position)] = real

    def _context(self, table: list[int], length: int) -> list[int]:
        return [self._pages[self._place(table, p)] for p in range(length)]

    def _place(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def _copy(self, source: dict[int, int], target: dict[int, int], pairs: Any) -> None:
        for a, b in pairs:
            for i in range(self.block_size):
                if a * self.block_size + i in source:
                    target[b * self.block_size + i] = source[a * self.block_size + i]


class _BrokenPromise(BaseException):
    """The engine broke a promise to its runner; no Exception, from which it would recover."""


def _require(is_kept: bool, promise: str) -> None:
    if not is_kept:
        raise _BrokenPromise(promise)


def _allowed_token(context: Sequence[int], mask: np.ndarray) -> int:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    allowed = np.flatnonzero(bits).tolist()
    return allowed[next_token(context, len(allowed))]


def _slot(row: ScheduledRow) -> int:
    assert row.request.slot is not None
    return row.request.slot


def _holder(row: ScheduledRow) -> tuple[int, int]:
    """What changes when a slot gets a new holder, or the same one anew."""
    return id(row.request), row.request.blocks.num_admissions


def _readouts(rows: Sequence[ScheduledRow]) -> dict[str, list[TokenScores | None]]:
    """The scores of given tokens, as the real runner's readouts have them."""
    found: dict[str, list[TokenScores | None]] = {}
    for i, row in enumerate(rows):
        request, stop = row.request, row.start + row.num_fed
        fed = range(max(row.start, request.scored.start), min(stop, request.scored.stop))
        if not fed:
            continue
        name, targets = SCORED, request.tokens(fed.start + 1, fed.stop + 1)
        if is_scored_plainly(request.params):
            name, targets = PROMPT_LOGPROBS, targets + [0] * (row.num_fed - len(targets))
        found.setdefault(name, [None] * len(rows))[i] = _scores(np.array(targets, np.int32))
    return found


def _scores(tokens: np.ndarray, ok: np.ndarray | None = None) -> TokenScores:
    """Scores that can be recognised: a token's log-probability is minus its id over 100."""
    top_ids = np.broadcast_to(np.arange(NUM_TOP, dtype=np.int32), (*tokens.shape, NUM_TOP))
    return TokenScores(
        tokens=tokens,
        ok=np.ones(tokens.shape, bool) if ok is None else ok,
        logprobs=(-tokens / 100).astype(np.float32),
        ranks=tokens + 1,
        top_ids=top_ids,
        top_logprobs=(-top_ids / 100).astype(np.float32),
    )
