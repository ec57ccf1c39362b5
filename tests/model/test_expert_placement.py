"""Slots of experts: all are there, devices have as many, and loads are as even as they can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.model.expert_placement import (
    balance,
    group_loads,
    imbalance,
    in_order,
    replica_table,
)

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 3), st.integers(1, 3))


@given(SIZES, st.data())
def test_every_expert_has_a_slot_and_no_device_more_load_than_without(sizes, data):
    groups, own, redundant, layers = sizes
    experts, redundant = groups * own, groups * redundant
    tokens = st.lists(st.integers(0, 50), min_size=experts, max_size=experts)
    load = np.array(data.draw(st.lists(tokens, min_size=layers, max_size=layers)))
    slots = balance(load, groups, redundant)
    assert slots.shape == (layers, experts + redundant)
    assert slots.dtype == np.int32
    np.testing.assert_array_equal(slots, balance(load.copy(), groups, redundant))
    for layer, own_slots in zip(load, slots, strict=True):
        assert set(own_slots) == set(range(experts))
        found = group_loads(layer, own_slots, groups)
        assert found.sum() == pytest.approx(layer.sum())
        without = layer.reshape(groups, -1).sum(1)
        assert found.max() <= without.max() + 1e-9
        # No plan is better than all devices alike, or than the hottest expert on all of them.
        assert found.max() >= layer.sum() / groups - 1e-9
        table = replica_table(own_slots, experts, redundant + 1)
        for expert, (count, *places) in enumerate(table):
            assert [own_slots[place] for place in places[:count]] == [expert] * count
            assert not any(places[count:])
        assert table[:, 0].sum() == len(own_slots)


@pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
def test_a_load_that_is_none_is_named_by_layer_and_expert(value):
    load = np.ones((2, 4))
    load[1, 3] = value
    with pytest.raises(ValueError, match=f"layer 1 has {value} for expert 3"):
        balance(load, 2, 0)


@pytest.mark.parametrize(
    ("groups", "redundant", "most"), [(2, 0, 1.001), (8, 0, 1.2), (8, 16, 1.01)]
)
def test_skewed_loads_come_near_the_least_that_can_be(groups, redundant, most):
    rng = np.random.default_rng(0)
    load = np.stack([rng.permutation(1e6 / np.arange(1, 129)) for _ in range(4)])
    plain = np.stack([in_order(128, groups, redundant)] * 4)
    before, after = (
        imbalance(load, each, groups) for each in (plain, balance(load, groups, redundant))
    )
    assert before > 1.1
    hottest = load.max(1).sum() / (load.sum() / groups)  # of a group that has it alone
    assert after <= (most if redundant else max(most, hottest * most))


def test_no_more_replicas_than_devices_and_nothing_to_balance():
    (slots,) = balance(np.array([[100, 1, 1, 1]]), 2, 4)
    assert (slots == 0).sum() == 2
    (even,) = balance(np.ones((1, 4)), 2, 2)
    assert even.tolist() == in_order(4, 2, 2).tolist() == [0, 1, 0, 2, 3, 2]
    assert imbalance(np.zeros((1, 4)), even[None], 2) == 1.0


@pytest.mark.parametrize(
    ("load", "groups", "redundant", "said"),
    [
        (np.ones((1, 6)), 4, 0, "4 groups of devices need a multiple"),
        (np.ones((1, 8)), 4, 2, "got 8 and 2"),
        (np.ones(8), 4, 0, r"loads must be \[layers, experts\]"),
        (-np.ones((1, 8)), 4, 0, "from 0 up"),
        (np.full((1, 8), np.nan), 4, 0, "from 0 up"),
    ],
)
def test_loads_that_cannot_be_are_refused(load, groups, redundant, said):
    with pytest.raises(ValueError, match=said):
        balance(load, groups, redundant)
