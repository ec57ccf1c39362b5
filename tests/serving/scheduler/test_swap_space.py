"""Tests that host blocks are given all or none, and that no two copies meet in one."""

import pytest

from jaxinfer.serving.scheduler.swap_space import SwapSpace
from tests.serving.requests.host_request import host_request


def make_request(blocks):
    request = host_request("r", [1])
    request.blocks.table = list(blocks)
    return request


def test_request_gets_room_for_all_its_blocks_or_none():
    space = SwapSpace(3)
    assert not space.take(make_request([4, 5, 6, 7]), 4)
    assert space.num_free_blocks == 3
    request = make_request([4, 5, 6, 7])
    assert space.take(request, 3)
    assert [pair[0] for pair in space.pop_copies_out()] == [4, 5, 6]
    space.check_invariants([request.blocks.host])


def test_copies_are_handed_out_once_even_if_the_host_blocks_are_released():
    space = SwapSpace(3)
    request = make_request([4, 5])
    space.take(request, 2)
    space.release(request)
    assert len(space.pop_copies_out()) == 2
    assert space.pop_copies_out() == []


def test_discarded_copies_never_meet_those_of_the_next_owner():
    space = SwapSpace(2)
    first, second = make_request([4, 5]), make_request([6, 7])
    space.take(first, 2)
    space.discard(first)
    space.take(second, 2)
    assert sorted(pair[0] for pair in space.pop_copies_out()) == [6, 7]
    space.check_invariants([second.blocks.host])


def test_no_array_has_blocks_of_two_requests():
    space = SwapSpace(12, 4)
    first, second = make_request(range(1, 6)), make_request([6])
    assert space.take(first, 5)
    assert space.num_free_blocks == 4
    assert not space.take(make_request([7, 8, 9, 10, 11]), 5)
    assert space.take(second, 1)
    assert (first.blocks.host, second.blocks.host) == ([0, 1, 2, 3, 4], [8])
    space.check_invariants([first.blocks.host, second.blocks.host])
    with pytest.raises(RuntimeError, match="arrays differ"):
        space.check_invariants([first.blocks.host])
    space.release(first)
    space.discard(second)
    assert space.num_free_blocks == 12
    assert [host for _, host in space.pop_copies_out()] == [0, 1, 2, 3, 4]
    space.check_invariants([])


def test_negative_size_is_refused():
    with pytest.raises(ValueError, match="num_host_blocks must not be negative"):
        SwapSpace(-1)
