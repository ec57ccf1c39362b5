"""The combinations chosen for tests hold every pair of values."""

import itertools

import pytest

from tests.pairwise import pairwise


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 2, 2, 2), (4, 3, 2), (5, 5, 5)])
def test_every_pair_of_values_occurs_and_there_are_few_combinations(sizes):
    chosen = pairwise(*[range(size) for size in sizes])
    for (i, a), (j, b) in itertools.combinations(enumerate(sizes), 2):
        found = {(each[i], each[j]) for each in chosen}
        assert found == set(itertools.product(range(a), range(b)))
    most = sorted(sizes)[-1] * sorted(sizes)[-2]
    assert most <= len(chosen) <= 2 * most
