"""Where things lie in a peer buffer: nothing shares a place with anything else."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.kernels.collectives.mosaic.peer_buffer import PeerBuffer, shared_peer_buffer


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([2, 4]), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_no_two_things_share_a_place_in_a_peer_buffer(devices, blocks, lines, packets):
    box = PeerBuffer(devices, blocks, lines, packets, line_bytes=32)
    partners = range(1, devices)
    words = [box.count(block) for block in range(blocks)]
    words += [box.flag(*of) for of in itertools.product(partners, range(blocks))]
    places = [range(begin, begin + 4) for begin in words]
    places.append(range(box.given_up, box.given_up + 8))
    for of in itertools.product(partners, range(2), range(blocks)):
        places += [range(box.line(*of, i), box.line(*of, i) + 32) for i in range(lines)]
        places += [range(box.packet(*of, i), box.packet(*of, i) + 64) for i in range(packets)]
    taken = [byte for place in places for byte in place]
    assert len(set(taken)) == len(taken)
    assert max(taken) + 1 == box.num_bytes


@pytest.mark.parametrize("devices", [2, 4])
def test_what_is_written_at_once_begins_where_it_may(devices):
    box = shared_peer_buffer(devices)
    assert box.given_up % 8 == 0
    assert box.packet(1, 0, 0, 0) % 16 == box.line(1, 0, 0, 0) % 16 == 0
