"""Tests that a hit means the same tokens after the same prefix, salt and weights."""

from jaxinfer.serving.scheduler.prefix_index import PrefixIndex, sha256
from tests.serving.requests.host_request import host_request

BLOCK_SIZE = 8


def make_request(tokens, blocks=(), salt=None):
    request = host_request("r", list(tokens), cache_salt=salt)
    request.blocks.table = list(blocks)
    return request


def register(index, request, num_blocks):
    index.register(request, num_blocks)
    index.settle()


def filled_index(tokens, blocks, salt=None, **kwargs):
    index = PrefixIndex(BLOCK_SIZE, **kwargs)
    register(index, make_request(tokens, blocks, salt), len(blocks))
    index.check_invariants()
    return index


def test_finds_the_longest_common_chain_of_full_blocks():
    index = filled_index(range(24), [5, 6, 7])
    assert index.find(make_request(range(24)), 3) == [5, 6, 7]
    assert index.find(make_request(range(24)), 2) == [5, 6]
    assert index.find(make_request([*range(16), *range(8)]), 3) == [5, 6]
    assert index.find(make_request([9, *range(23)]), 2) == []


def test_equal_tokens_after_another_prefix_are_no_hit():
    index = filled_index([*range(8), *range(8)], [5, 6])
    assert index.find(make_request([*range(8), *range(8)]), 2) == [5, 6]
    assert index.find(make_request([*range(1, 9), *range(8)]), 2) == []


def test_salts_never_share():
    salts = [None, "", "None", "a", "b"]
    for salt in salts:
        index = filled_index(range(8), [5], salt)
        hits = [other for other in salts if index.find(make_request(range(8), salt=other), 1)]
        assert hits == [salt]


def test_weight_version_ends_all_hits_for_old_and_new_lookups():
    index = filled_index(range(8), [5])
    seen_before = make_request(range(8))
    assert index.find(seen_before, 1) == [5]
    index.invalidate()
    assert index.find(seen_before, 1) == []
    assert 5 not in index
    index.check_invariants()


def test_request_seen_before_a_weight_update_is_shared_after_it():
    index = PrefixIndex(BLOCK_SIZE)
    seen_before = make_request(range(8), [5])
    index.find(seen_before, 1)
    index.invalidate()
    index.find(seen_before, 1)
    register(index, seen_before, 1)
    assert index.find(make_request(range(8)), 1) == [5]


def test_blocks_begun_under_older_weights_are_not_offered():
    index = PrefixIndex(BLOCK_SIZE)
    old = make_request(range(16), [5, 6])
    register(index, old, 1)
    index.invalidate()
    register(index, old, 2)
    assert len(index) == 0
    assert index.find(make_request(range(16)), 2) == []


def test_weight_version_is_part_of_the_hash():
    digests = []
    for _ in range(2):
        index = PrefixIndex(BLOCK_SIZE)
        for _ in range(len(digests)):
            index.invalidate()
        request = make_request(range(8), [5])
        index.find(request, 1)
        register(index, request, 1)
        digests.append(request.blocks.hashes[0])
    assert digests[0] != digests[1]


def test_colliding_hashes_are_told_apart_by_their_tokens():
    index = filled_index(range(8), [5], hash_function=lambda data: b"same")
    assert index.find(make_request(range(8)), 1) == [5]
    assert index.find(make_request(range(1, 9)), 1) == []


def test_colliding_hashes_are_told_apart_by_their_parents():
    def weak(data):
        return b"child" if data.endswith(b"\x07" + bytes(3)) else data[-4:] + data[:2]

    index = filled_index([*range(50, 58), *range(8)], [5, 6], hash_function=weak)
    assert index.find(make_request([*range(50, 58), *range(8)]), 2) == [5, 6]
    register(index, make_request([*range(60, 68)], [7]), 1)
    assert index.find(make_request([*range(60, 68), *range(8)]), 2) == [7]


def test_first_block_with_some_content_stays_the_indexed_one():
    index = filled_index(range(8), [5])
    register(index, make_request(range(8), [6]), 1)
    assert index.find(make_request(range(8)), 1) == [5]
    assert 6 not in index
    index.check_invariants()


def test_removed_block_is_not_found_and_its_content_may_return_elsewhere():
    index = filled_index(range(16), [5, 6])
    index.remove(5)
    assert index.find(make_request(range(16)), 2) == []
    register(index, make_request(range(8), [9]), 1)
    assert index.find(make_request(range(16)), 2) == [9, 6]
    index.check_invariants()


def test_hash_is_sha256():
    request = make_request(range(8), [5])
    register(PrefixIndex(BLOCK_SIZE), request, 1)
    assert len(request.blocks.hashes[0]) == 32


def test_what_is_found_is_not_hashed_again():
    hashed = []

    def spy(data):
        hashed.append(data)
        return sha256(data)

    index = filled_index(range(24), [5, 6, 7], hash_function=spy)
    del hashed[:]
    request = make_request([*range(24), *range(8)], [5, 6, 7, 8])
    assert index.find(request, 4) == [5, 6, 7]
    request.blocks.num_registered = 3
    register(index, request, 4)
    _root, last = hashed
    assert last.startswith(request.blocks.hashes[2])
    assert index.find(make_request([*range(24), *range(8)]), 4) == [5, 6, 7, 8]


def test_registered_blocks_are_indexed_when_somebody_may_share_them():
    index = PrefixIndex(BLOCK_SIZE)
    index.register(make_request(range(16), [5, 6], salt="a"), 2)
    for other in (make_request(range(1, 17), salt="a"), make_request(range(16))):
        index.settle_for(other)
        assert len(index) == 0
    alike = make_request([*range(8), *range(8)], salt="a")
    assert index.find(alike, 2) == []
    index.settle_for(alike)
    assert index.find(alike, 2) == [5]
    assert len(index) == 2


def test_a_prompt_shorter_than_a_block_is_found_by_what_was_written_after_it():
    index = PrefixIndex(BLOCK_SIZE)
    writer = make_request(range(3), [5])
    writer.output_token_ids = [*range(3, 8)]
    index.register(writer, 1)
    reader = make_request(range(9))
    index.settle_for(reader)
    assert index.find(reader, 1) == [5]


def test_what_was_registered_before_a_weight_update_is_never_indexed():
    index = PrefixIndex(BLOCK_SIZE)
    index.register(make_request(range(8), [5]), 1)
    index.invalidate()
    index.settle()
    assert len(index) == 0
