"""A step looks again only at rows that moved, and packs what a look at all of them would give."""

import dataclasses
import random

import numpy as np
import pytest

from jaxinfer import SamplingParams
from jaxinfer.serving.runner.batch_builder import BatchBuilder
from tests.serving.small_llm import held_blocks, small_llm


def _array_pairs(batch, other):
    yield batch.packed, other.packed
    for ours, theirs in ((batch.edits, other.edits), (batch.counts, other.counts)):
        assert len(ours) == len(theirs)


@pytest.fixture
def looks(monkeypatch):
    """Every builder has a twin that is told nothing of moved rows; rows looked at, and rows."""
    build, clear, make = BatchBuilder.build, BatchBuilder.clear, BatchBuilder.__init__
    twins, seen = {}, []

    def made(self, *args, **kwargs):
        make(self, *args, **kwargs)
        twins[self] = object.__new__(BatchBuilder)
        make(twins[self], *args, **kwargs)

    def cleared(self):
        clear(self)
        clear(twins[self])

    def built(self, schedule):
        batch = build(self, schedule)
        other = build(twins[self], dataclasses.replace(schedule, moved=None))
        assert (batch.shape, batch.mode, batch.forward) == (other.shape, other.mode, other.forward)
        for ours, theirs in _array_pairs(batch, other):
            np.testing.assert_array_equal(ours, theirs)
        if schedule.is_decode and schedule.moved is not None:
            seen.append((len(schedule.moved), len(schedule.rows)))
        return batch

    monkeypatch.setattr(BatchBuilder, "__init__", made)
    monkeypatch.setattr(BatchBuilder, "clear", cleared)
    monkeypatch.setattr(BatchBuilder, "build", built)
    return seen


def test_a_mode_that_gets_cheaper_is_noticed_within_a_block(looks):
    params = SamplingParams(temperature=1.0, max_tokens=6, min_tokens=4, seed=1, ignore_eos=True)
    with small_llm(num_decode_steps=1) as llm:
        llm.generate([[1, 2]], params, use_tqdm=False)
    assert len(looks) == 5


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_decode_steps": 4}, {"preemption_mode": "swap"}])
def test_batches_are_those_of_a_look_at_all_rows(looks, options):
    """Requests come, end, are aborted, preempted and change their sampling mode."""
    rng = random.Random(5)
    swap = {"swap_space": 0.01} if "preemption_mode" in options else {}
    with small_llm(**options, **swap) as llm, held_blocks(llm, 9):
        for i in range(60):
            if i < 40 and rng.random() < 0.5:
                length = rng.choice([1, 3, 8, 15])
                prompt = [rng.randrange(90) for _ in range(length)]
                params = SamplingParams(
                    temperature=1.0,
                    max_tokens=rng.randrange(3, 20),
                    min_tokens=rng.choice([0, 0, 1, 3]),
                    n=rng.choice([1, 1, 2]),
                    seed=i,
                )
                llm.add_request(str(i), {"prompt_token_ids": prompt}, params)
            if rng.random() < 0.05:
                llm.abort_request([str(rng.randrange(i + 1))])
            llm.step()
        while llm.has_unfinished_requests():
            llm.step()
    assert sum(moved for moved, _ in looks) < sum(rows for _, rows in looks) / 2
