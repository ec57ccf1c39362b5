"""A device in pure Python that notices every wrong page: the oracle of the scheduler's tests.

Each page slot holds the hash of the whole history up to its token, computed through the pages, as
keys and values are. The next token is a function of that hash, so a sequence that ever reads a
foreign, stale or missing slot answers differently from its solo run, and `launch` also checks each
slot that a row may read.
"""

import functools
import random
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.prefix_tiers.block_copies import TierCopies
from jaxinfer.serving.requests.request import IN_FLIGHT_TOKEN, Request, RequestStatus
from jaxinfer.serving.scheduler.schedule import RowUpdate, Schedule, ScheduledRow
from jaxinfer.serving.scheduler.scheduler import Scheduler
from tests.serving.prefix_tiers.fake_transfers import FakeTransfers

VOCAB_SIZE = 24
EOS = 0
START = 17


class Slot(NamedTuple):
    chain: int
    position: int
    weights: int
    salt: str | None


def extend_chain(chain: int, token: int) -> int:
    return hash((chain, token, 0x9E3779B9)) & 0x7FFFFFFFFFFFFFFF


def chain_of(tokens: Sequence[int]) -> int:
    return functools.reduce(extend_chain, tokens, START)


def next_token(chain: int) -> int:
    return (chain >> 7) % VOCAB_SIZE


def masked_token(chain: int) -> int:
    """The token that is drawn under a grammar's mask."""
    return (chain >> 17) % VOCAB_SIZE


def free_tokens(prompt_token_ids: Sequence[int]) -> Iterator[int]:
    """An answer without end."""
    chain = chain_of(prompt_token_ids)
    while True:
        yield (token := next_token(chain))
        chain = extend_chain(chain, token)


def solo_run(
    request: Request,
    eos: frozenset[int],
    max_model_len: int,
    tokens: Iterator[int] | None = None,
) -> tuple[list[int], str, int | None]:
    """Outputs, finish reason and stop reason of an undisturbed run, without the engine's code."""
    params: SamplingParams = request.params
    outputs: list[int] = []
    if request.new.prefill_only:
        return outputs, "length", None
    ignores_eos = params.ignore_eos and params.structured_outputs is None
    for token in tokens or free_tokens(request.prompt_token_ids):
        outputs.append(token)
        if len(outputs) >= params.min_tokens:
            if token in eos and not ignores_eos:
                return outputs, "stop", None
            if token in (params.stop_token_ids or ()):
                return outputs, "stop", token
        total = len(request.prompt_token_ids) + len(outputs)
        if len(outputs) == params.max_tokens or total == max_model_len:
            break
    return outputs, "length", None


class FakeDevice:
    def __init__(self, scheduler: Scheduler, transfers: FakeTransfers | None = None) -> None:
        self.scheduler = scheduler
        self.transfers = transfers
        self.block_size = scheduler.pool.block_size
        self.weights = 0
        self.host: dict[int, list[Slot | None]] = {}
        self.last_tokens: list[int | None] = [None] * scheduler.max_num_seqs
        self.true_tokens: dict[Request, list[int]] = {}
        self.oldest_weights: dict[Request, int] = {}
        self.drafting: dict[int, tuple[Request, int]] = {}
        self.drafts: dict[int, list[list[tuple[int, int]]] | None] = {}
        self.reset_cache()

    def reset_cache(self) -> None:
        """What the runner does after a step has destroyed the donated pages."""
        self.pages: list[list[Slot | None]] = [
            [None] * self.block_size for _ in range(self.scheduler.pool.num_blocks)
        ]
        for request in self.scheduler.unfinished():
            known = self.true_tokens.get(request)
            if known is not None:
                del known[request.num_known_tokens :]
        self.drafting.clear()

    def note_waiting(self) -> None:
        """Call after every operation: what waits must restart under the present weights."""
        for request in self.scheduler.unfinished():
            if request.status is RequestStatus.WAITING:
                self.oldest_weights[request] = self.weights

    def launch(self, schedule: Schedule) -> list[list[int]]:
        """Run a step; tokens of `[row][inner step]`, arbitrary where a row does not sample."""
        self.check_shape(schedule)
        for copies in schedule.tier_copies:
            self.copy_out(copies)
        for block, host_block in schedule.swap_out:
            self.host[host_block] = list(self.pages[block])
        for block, host_block in schedule.swap_in:
            self.pages[block] = list(self.host[host_block])
        for copies in schedule.tier_copies:
            self.copy_back(copies)
        for row in schedule.rows:
            self.note_read(row)
        self.drafts[id(schedule)] = None
        if schedule.num_drafts:
            return self.launch_with_drafts(schedule)
        results: list[list[int]] = [[] for _ in schedule.rows]
        for step in range(schedule.num_steps):
            for row in schedule.rows:
                self.write(row, step, schedule)
            leader = schedule.rows[0]
            for row, result in zip(schedule.rows, results, strict=True):
                leader = row if row.num_fed else leader
                result.append(self.attend(row, step, leader.request.blocks.table))
        for source, target in schedule.block_copies:
            self.pages[target] = list(self.pages[source])
        for row in schedule.rows:
            if row.num_fed == 0:
                self.check_context(row.request, row.start)
        return results

    def copy_out(self, copies: TierCopies) -> None:
        for block, key in copies.out:
            self.transfers.copy_out(key, list(self.pages[block]))

    def copy_back(self, copies: TierCopies) -> None:
        for back in copies.back:
            for block, row in zip(back.blocks, back.rows, strict=True):
                self.pages[block] = list(row)
            self.transfers.release(back.fetch)

    def launch_copies(self, copies: TierCopies, failed: object) -> None:
        """A `LaunchCopies`."""
        self.copy_out(copies)
        self.copy_back(copies)

    def launch_with_drafts(self, schedule: Schedule) -> list[list[int]]:
        """Rows whose drafts and lengths the device alone knows; the tokens that each gains."""
        results, counts = [], []
        for i, row in enumerate(schedule.rows):
            request = row.request
            true_tokens = self.true_tokens[request]
            start = len(true_tokens) - 1
            holder = request, request.blocks.num_admissions
            if i in schedule.unknown:
                assert row.start == start <= request.num_known_tokens
                self.drafting[request.slot] = holder
            assert self.drafting[request.slot] == holder, "the device has other tokens"
            assert row.start >= start, "there is less room than it may need"
            steps = []
            for _ in range(schedule.num_steps):
                if left := row.num_reserved - (len(true_tokens) - 1 - start):
                    steps.append(self.verify(request, min(left - 1, schedule.num_drafts)))
            gained = true_tokens[start + 1 :]
            results.append(gained + [0] * (row.num_reserved - len(gained)))
            counts.append(steps)
        self.drafts[id(schedule)] = counts
        return results

    def verify(self, request: Request, most: int) -> tuple[int, int]:
        """One step of a row with drafts: how many there were, and how many tokens it gained."""
        true_tokens = self.true_tokens[request]
        start = len(true_tokens) - 1
        drafts = self.guess(request, most)
        self.put(request, start, [self.last_tokens[request.slot], *drafts])
        self.check_context(request, start + 1)
        sampled = [next_token(self.slot(request, start + j).chain) for j in range(len(drafts) + 1)]
        num_accepted = 1
        while sampled[num_accepted - 1 : num_accepted] == drafts[num_accepted - 1 :][:1]:
            num_accepted += 1
        true_tokens += sampled[:num_accepted]
        self.last_tokens[request.slot] = true_tokens[-1]
        return len(drafts), num_accepted

    def guess(self, request: Request, most: int) -> list[int]:
        """Drafts of which the first are right: none, some or all of them."""
        chain = chain_of(self.true_tokens[request])
        rng = random.Random(chain)
        drafts = []
        for place in range(rng.randint(0, most)):
            is_good = place < rng.choice([0, 1, 9])
            token = next_token(chain) if is_good else rng.randrange(VOCAB_SIZE)
            drafts.append(token)
            chain = extend_chain(chain, token)
        return drafts

    def draw_constrained(self, rows: Sequence[ScheduledRow], tokens: Sequence[list[int]]) -> None:
        """Draw by their constraints the rows of the last launch that are host-dependent.

        Args:
            rows: all earlier tokens of their requests are read.
            tokens: of each row, drawn as if there were no constraint; changed.
        """
        for row, drawn in zip(rows, tokens, strict=True):
            request = row.request
            if request.num_in_flight_tokens == 0:
                continue  # what was read has ended it
            assert request.num_in_flight_tokens == row.num_reserved == 1, "drawn before it is known"
            wanted = request.constraint.after(request.output_token_ids)
            if wanted.forced:
                self.last_tokens[request.slot] = None
                self.scheduler.append_forced(row, wanted.forced)
            elif wanted.mask:
                drawn[0] = masked_token(chain_of(self.true_tokens[request][:-1]))
                self.true_tokens[request][-1] = self.last_tokens[request.slot] = drawn[0]

    def note_read(self, row: ScheduledRow) -> None:
        """Take over what the host knows of a constrained answer, before its row is launched.

        Tokens that the device drew may have been dropped, and others forced.
        """
        request = row.request
        true_tokens = self.true_tokens.setdefault(request, list(request.prompt_token_ids))
        if request.constraint is not None:
            known = request.prompt_token_ids + request.output_token_ids
            unread = true_tokens[len(known) : request.num_tokens - row.num_reserved]
            true_tokens[:] = known + unread

    def check_shape(self, schedule: Schedule) -> None:
        rows = schedule.rows
        scheduler = self.scheduler
        assert 1 <= len(rows) <= scheduler.max_num_seqs
        assert len({row.request.slot for row in rows}) == len(rows)
        assert len({row.request.request_id for row in rows}) == len(rows)
        ranks = [row.request.rank for row in rows if row.request not in schedule.admitted]
        assert ranks == sorted(ranks)
        assert schedule.num_tokens == sum(row.num_fed for row in rows)
        assert schedule.num_tokens <= scheduler.max_num_batched_tokens
        host_blocks = [host_block for _, host_block in schedule.swap_out]
        assert len(set(host_blocks)) == len(host_blocks)
        max_table_len = scheduler.pool.blocks_for(scheduler.max_model_len)
        copied = [block for pair in schedule.block_copies for block in set(pair)]
        sources = {source for source, _ in schedule.block_copies}
        assert all(block in sources or copied.count(block) == 1 for block in copied)
        assert not sources & {target for _, target in schedule.block_copies}
        for before, row in zip([None, *rows], rows, strict=False):
            assert row.num_fed >= 1 or self.is_fork(row, before)
            assert len(row.request.blocks.table) <= max_table_len
            assert 0 not in row.request.blocks.table
            assert (row.num_reserved > 0) == row.samples
            if schedule.num_steps > 1:
                assert schedule.is_decode
                assert row.request.params.structured_outputs is None
            if schedule.num_steps > 1 or schedule.num_drafts:
                assert row.num_reserved <= schedule.num_steps * (1 + schedule.num_drafts)
            else:
                assert row.num_reserved <= 1
            if schedule.num_drafts:
                assert schedule.is_decode
                assert row.request.constraint is None
            if schedule.is_decode:
                assert row.samples
                assert row.num_fed == 1

    def is_fork(self, row: ScheduledRow, before: ScheduledRow) -> bool:
        """Whether the hidden state of the row before it is the one that it needs."""
        end = before.start + before.num_fed
        prompts = row.request.new.prompt, before.request.new.prompt
        return (
            row.start == end == row.request.num_prompt_tokens
            and (row.num_reserved, before.num_reserved) == (1, 1)
            and prompts[0].token_ids == prompts[1].token_ids
            and prompts[0].cache_salt == prompts[1].cache_salt
        )

    def write(self, row: ScheduledRow, step: int, schedule: Schedule) -> None:
        request = row.request
        start = row.start + step
        true_tokens = self.true_tokens[request]
        if row.num_fed == 0 or (step > 0 and step >= row.num_reserved):
            return
        if schedule.is_decode:
            tokens = [self.last_tokens[request.slot]]
        else:
            tokens = unpack_ids(row.packed_tokens())
            if tokens[-1] == IN_FLIGHT_TOKEN:
                tokens[-1] = self.last_tokens[request.slot]
        assert tokens == true_tokens[start : start + len(tokens)], "a row is fed wrong tokens"
        self.put(request, start, tokens)

    def put(self, request: Request, start: int, tokens: Sequence[int]) -> None:
        """Write tokens into a request's pages from a position on."""
        for position, token in enumerate(tokens, start):
            chain = START if position == 0 else self.slot(request, position - 1).chain
            block = request.blocks.table[position // self.block_size]
            self.pages[block][position % self.block_size] = Slot(
                extend_chain(chain, token), position, self.weights, request.new.prompt.cache_salt
            )

    def attend(self, row: ScheduledRow, step: int, table: list[int]) -> int:
        """Check all that the row reads through its table, or a fork's leader's; its next token."""
        request = row.request
        if step > 0 and step >= row.num_reserved:
            return 0
        true_tokens = self.true_tokens[request]
        context_len = row.start + step + row.num_fed
        token = next_token(self.check_context(request, context_len, table))
        if row.samples:
            self.last_tokens[request.slot] = token
            assert len(true_tokens) == context_len or true_tokens[context_len] == token
            true_tokens[context_len : context_len + 1] = [token]
        return token

    def check_context(
        self, request: Request, context_len: int, table: list[int] | None = None
    ) -> int:
        """Check that pages hold the leading true tokens; the hash of their history."""
        true_tokens = self.true_tokens[request]
        chain = START
        for position in range(context_len):
            chain = extend_chain(chain, true_tokens[position])
            slot = self.slot(request, position, table)
            assert slot.chain == chain, f"position {position} holds another history"
            assert slot.position == position
            assert slot.salt == request.new.prompt.cache_salt, "a block crossed salts"
            assert slot.weights >= self.oldest_weights.get(request, 0), "stale weights"
        return chain

    def slot(self, request: Request, position: int, table: list[int] | None = None) -> Slot:
        block = (table or request.blocks.table)[position // self.block_size]
        slot = self.pages[block][position % self.block_size]
        assert slot is not None, f"position {position} was never written"
        return slot


def host_dependent_rows(schedule: Schedule) -> list[int]:
    """Indices of the rows whose sampling reads earlier tokens; before another step is planned."""
    found = []
    for i, row in enumerate(schedule.rows):
        number = row.start + row.num_fed - row.request.num_prompt_tokens
        constraint = row.request.constraint
        if row.samples and constraint is not None and number >= constraint.starts_at:
            found.append(i)
    return found


def accepted(device: FakeDevice, schedule: Schedule) -> list[int]:
    """How many of each row's tokens count."""
    if schedule.num_drafts:
        steps = device.drafts[id(schedule)]
        return [sum(num_accepted for _, num_accepted in row) for row in steps]
    return [row.num_reserved for row in schedule.rows]


def read(device: FakeDevice, schedule: Schedule, tokens: list[list[int]]) -> list[RowUpdate]:
    """Have the scheduler take in what a step brought."""
    return device.scheduler.update(schedule, tokens, drafts=device.drafts[id(schedule)])


def unpack_ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def run_to_end(scheduler: Scheduler, device: FakeDevice, *, depth: int = 1) -> list[Schedule]:
    """Run everything, reading tokens `depth` steps late; all schedules in order."""
    schedules: list[Schedule] = []
    in_flight: list[tuple[Schedule, list[list[int]]]] = []
    while scheduler.has_unfinished:
        device.note_waiting()
        schedule = scheduler.schedule()
        if schedule is not None:
            schedules.append(schedule)
            in_flight.append((schedule, device.launch(schedule)))
        assert in_flight, "nothing runs and nothing is in flight"
        if schedule is None or len(in_flight) > depth:
            read(device, *in_flight.pop(0))
        scheduler.check_invariants()
    for late in in_flight:
        assert read(device, *late) == []
    scheduler.check_invariants()
    assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
    return schedules
