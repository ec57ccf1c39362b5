import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.kernels.attention.shared_prefix import (
    KEYS,
    MOST_ITEMS_OF_A_ROW,
    SharedPrefixes,
    rows_in_item,
)
from jaxinfer.serving.programs.shared_prefixes import find_groups, most_items, write_items


def _plan(tables, contexts, block_size, rows_in_item, batch_rows):
    items = np.zeros((most_items(batch_rows), 4), np.int32)
    into = SharedPrefixes(np.zeros(1, np.int32), items, np.zeros((batch_rows, 4), np.int32))
    groups = find_groups(
        tables,
        contexts,
        block_size=block_size,
        batch_rows=batch_rows,
        rows_in_item=rows_in_item,
    )
    write_items(into, groups)
    return into, groups


def _tables(shared_blocks, width, block_size, own_tokens):
    """Rows that each share a number of blocks with the row before, and have tokens of their own."""
    ids = iter(range(1, 10**6))
    tables = np.zeros((len(shared_blocks), width), np.int32)
    contexts = np.zeros(len(shared_blocks), np.int32)
    for row, blocks in enumerate(shared_blocks):
        if row:
            tables[row, :blocks] = tables[row - 1, :blocks]
        for column in range(blocks if row else 0, width):
            tables[row, column] = next(ids)
        contexts[row] = min(blocks * block_size + own_tokens[row], width * block_size)
    return tables, contexts


@st.composite
def _batches(draw):
    block_size = draw(st.sampled_from([8, 16, 64, 256]))
    size = draw(st.sampled_from([8, 16, 32, 64]))
    rows = draw(st.integers(1, 90))
    width = draw(st.integers(1, 1024 // block_size))
    runs = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(0, width)), min_size=1))
    blocks = [b for count, b in runs for _ in range(count)][:rows]
    own = draw(st.lists(st.integers(1, 300), min_size=len(blocks), max_size=len(blocks)))
    tables, contexts = _tables(blocks, width, block_size, own)
    return tables, contexts, block_size, size, max(size, len(blocks)) + draw(st.integers(0, 9))


@settings(deadline=None, max_examples=300)
@given(_batches())
def test_units_and_what_a_row_sees_alone_are_its_whole_context(batch):
    tables, contexts, S, size, batch_rows = batch
    shared, groups = _plan(*batch)
    (count,) = shared.num_items
    assert count <= len(shared.items)
    assert not shared.rows[len(contexts) :].any()
    assert (shared.rows[:, 0] > 0).sum() == sum(group.rows for group in groups)
    for row, (keys, first, parts, place) in enumerate(shared.rows.tolist()):
        if not keys:
            assert (first, parts, place) == (0, 0, 0)
            continue
        # The token that is fed is always the row's own.
        assert keys < contexts[row]
        assert 0 < parts <= MOST_ITEMS_OF_A_ROW
        end = 0
        for eighth, table_row, begin, stop in shared.items[first : first + parts].tolist():
            assert first + parts <= count
            assert begin == end < stop
            assert begin % KEYS == stop % KEYS == 0
            assert eighth * 8 + place == row
            assert 0 <= place < size
            assert eighth * 8 + size <= batch_rows
            blocks = slice(begin // S, -(-stop // S))
            np.testing.assert_array_equal(tables[table_row, blocks], tables[row, blocks])
            end = stop
        assert end == keys


def test_samples_of_a_prompt_are_one_group_each():
    tables, contexts = _tables(([0] + [63] * 15) * 4, 96, 16, [300] * 64)
    contexts += 63 * 16
    _, groups = _plan(tables, contexts, 16, 32, 64)
    assert [group[1:] for group in groups] == [(first, 16, 960) for first in range(0, 64, 16)]
    assert sum(group.saved_keys for group in groups) == 4 * 15 * 960


def test_a_long_shared_prompt_is_cut_for_the_blocks_that_run_at_a_time():
    tables, contexts = _tables([0] + [256] * 31, 300, 16, [100] * 32)
    contexts[0] = contexts[1]
    shared, _ = _plan(tables, contexts, 16, 32, 32)
    borders = shared.items[: int(shared.num_items[0]), 2:].tolist()
    assert borders == [[0, 1024], [1024, 2048], [2048, 3072], [3072, 4096]]


def test_rows_under_one_system_prompt_are_grouped_by_what_saves_most():
    # Two groups of 4 with a long prompt each, of which all 8 share the beginning.
    tables, contexts = _tables([0, 60, 60, 60, 16, 60, 60, 60], 64, 16, [20] * 8)
    contexts[:] = 1000
    _, groups = _plan(tables, contexts, 16, 32, 32)
    assert [(group.first, group.rows, group.keys) for group in groups] == [
        (0, 4, 960),
        (4, 4, 960),
    ]
    tables, contexts = _tables([0, 20, 16, 20, 16, 20, 16, 20], 64, 16, [20] * 8)
    contexts[:] = 1000
    _, groups = _plan(tables, contexts, 16, 32, 32)
    assert [(group.first, group.rows, group.keys) for group in groups] == [(0, 8, 256)]


@pytest.mark.parametrize("context", [1, 16, 128, 129])
def test_blocks_that_a_row_has_not_filled_are_not_shared(context):
    # Entries past a context may be left from the slot's previous holder.
    tables = np.tile(np.arange(1, 65, dtype=np.int32), (8, 1))
    contexts = np.full(8, 1000, np.int32)
    contexts[3] = context
    _, groups = _plan(tables, contexts, 16, 8, 8)
    by_row = {row: g.keys for g in groups for row in range(g.first, g.first + g.rows)}
    assert by_row.get(3, 0) == (128 if context == 129 else 0)


def test_units_beyond_their_number_leave_rows_alone():
    tables, contexts = _tables([0, 32, 32, 32] * 10, 40, 16, [100] * 40)
    contexts[:] = 600
    items = np.zeros((5, 4), np.int32)
    into = SharedPrefixes(np.zeros(1, np.int32), items, np.zeros((40, 4), np.int32))
    groups = find_groups(tables, contexts, block_size=16, batch_rows=40, rows_in_item=16)
    assert len(groups) == 10
    write_items(into, groups)
    assert into.num_items[0] <= 5
    assert (into.rows[:, 0] > 0).sum() == 4 * (into.num_items[0] // 2)


@pytest.mark.parametrize(("rows", "grouped"), [(2, False), (3, False), (4, True)])
def test_few_rows_are_left_to_the_cache_of_the_chip(rows, grouped):
    tables, contexts = _tables(([0] + [60] * (rows - 1)) * 8, 64, 16, [20] * 8 * rows)
    contexts[:] = 1000
    _, groups = _plan(tables, contexts, 16, 32, 32)
    assert bool(groups) == grouped


@pytest.mark.parametrize(
    ("group", "rows"), [(1, 64), (2, 32), (3, 16), (4, 16), (5, 8), (8, 8), (16, 0)]
)
def test_rows_of_a_unit_are_eights_whose_queries_fit(group, rows):
    assert rows_in_item(group) == rows
