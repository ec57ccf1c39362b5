"""Which replica gets a request: the longest cached prefix, unless all the others stand idle."""

from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.replicas.router import ReplicaView, choose_replica, request_load

BUDGET = 8192
replicas = st.lists(
    st.tuples(st.integers(0, 64), st.integers(0, 40), st.integers(0, 1 << 20)),
    min_size=1,
    max_size=8,
).map(lambda rows: [ReplicaView(i, *row) for i, row in enumerate(rows)])


def limit(views):
    fewest = min(view.num_sequences for view in views)
    return max(8, fewest + fewest // 2)


@given(replicas)
def test_the_longest_prefix_wins_among_those_that_are_not_crowded(views):
    chosen = views[choose_replica(views)]
    open_ones = [view for view in views if view.num_sequences <= limit(views)]
    assert chosen in open_ones
    assert chosen.num_cached_tokens == max(view.num_cached_tokens for view in open_ones)


@given(replicas)
def test_among_equal_prefixes_the_least_loaded_wins_and_then_the_lowest_index(views):
    chosen = views[choose_replica(views)]
    rivals = [
        view
        for view in views
        if view.num_cached_tokens == chosen.num_cached_tokens and view.num_sequences <= limit(views)
    ]
    assert (chosen.load, chosen.index) == min((view.load, view.index) for view in rivals)


@given(replicas, st.randoms())
def test_the_order_in_which_replicas_are_listed_does_not_matter(views, random):
    shuffled = list(views)
    random.shuffle(shuffled)
    assert choose_replica(shuffled) == choose_replica(views)


@given(
    st.integers(2, 8),
    st.lists(st.tuples(st.integers(1, 2048), st.integers(1, 16)), max_size=60),
)
def test_requests_without_a_cached_prefix_spread_evenly(count, requests):
    sequences, loads = [0] * count, [0] * count
    for num_tokens, n in requests:
        views = [ReplicaView(i, 0, sequences[i], loads[i]) for i in range(count)]
        i = choose_replica(views)
        sequences[i] += n
        loads[i] += request_load(n, num_tokens, BUDGET)
    # No replica is ahead of another by more than one request, and that one is the largest.
    assert max(loads) - min(loads) <= request_load(16, 2048, BUDGET)


def test_as_many_sequences_count_more_than_longer_prompts():
    loads, sequences = [0] * 4, [0] * 4
    for i in range(256):
        views = [ReplicaView(j, 0, sequences[j], loads[j]) for j in range(4)]
        j = choose_replica(views)
        sequences[j] += 1
        loads[j] += request_load(1, 100 + i * 37 % 924, BUDGET)
    assert sequences == [64] * 4


def test_a_prefix_that_all_prompts_share_is_not_kept_to_one_replica():
    views = [ReplicaView(0, 16, 9, 9 * BUDGET), ReplicaView(1, 0, 0, 0)]
    assert choose_replica(views) == 1
    views[0] = ReplicaView(0, 16, 8, 8 * BUDGET)
    assert choose_replica(views) == 0
