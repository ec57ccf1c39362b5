"""What is packed as plain integers is exactly the lists of plain integers that fit."""

import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.plain_ids import pack_plain_ids
from jaxinfer.serving.request import pack_ids

INT32 = st.integers(-(2**31), 2**31 - 1)


class Named(enum.IntEnum):
    ONE = 1


@given(st.lists(INT32))
def test_plain_integers_are_packed(ids):
    assert pack_plain_ids(ids) == pack_ids(ids)


@given(
    st.lists(INT32, max_size=5),
    st.one_of(
        st.integers(min_value=2**31),
        st.integers(max_value=-(2**31) - 1),
        st.booleans(),
        st.none(),
        st.floats(),
        st.complex_numbers(),
        st.text(max_size=9),
        st.binary(max_size=9),
        st.lists(INT32, max_size=2),
        st.sampled_from([Named.ONE, np.int32(1), np.array([1]), object(), int, ..., range(2)]),
    ),
    st.lists(INT32, max_size=5),
)
def test_anything_else_among_them_is_noticed(before, other, after):
    assert pack_plain_ids([*before, other, *after]) is None


def test_equal_objects_are_written_out_each_time():
    large = 123_456
    assert pack_plain_ids([large] * 1000) == pack_ids([large] * 1000)


def test_lists_within_themselves_end():
    ids = [1]
    ids.append(ids)
    assert pack_plain_ids(ids) is None


@pytest.mark.parametrize("ids", [[b""], [b"", b""], [1.0, True], [True, 1.0], [1, 1.0, True]])
def test_values_of_as_many_bytes_as_integers_are_noticed(ids):
    assert pack_plain_ids(ids) is None
