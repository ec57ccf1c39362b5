"""Programs get XLA's options for their collectives where there is something to overlap."""

import pytest

from jaxinfer.serving.programs.collectives import OVERLAP_OPTIONS
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import options_of

_HALVED = PrefillShape(8192, 8, 64)


def _options(key, platform="gpu", num_devices=2):
    return options_of(key, platform=platform, num_devices=num_devices)


def test_prefills_in_parts_ask_for_the_scheduler_that_overlaps():
    assert OVERLAP_OPTIONS.items() <= _options(_HALVED).items()
    assert OVERLAP_OPTIONS["xla_gpu_enable_latency_hiding_scheduler"]


@pytest.mark.parametrize(
    ("key", "num_devices"),
    [
        (_HALVED, 1),
        (PrefillShape(1024, 8, 64), 2),
        (DecodeShape(256, 64), 2),
        (SampledDecodeKey(DecodeShape(2, 64), "temperature"), 2),
    ],
    ids=str,
)
def test_where_nothing_overlaps_collectives_stay_as_xla_has_them(key, num_devices):
    assert not OVERLAP_OPTIONS.keys() & _options(key, num_devices=num_devices).keys()


def test_a_cpu_gets_no_options():
    assert _options(_HALVED, platform="cpu") == {}


@pytest.mark.parametrize("rows", [2, 256])
def test_a_decode_step_is_compiled_alike_with_and_without_its_sampler(rows):
    shape = DecodeShape(rows, 64)
    assert _options(SampledDecodeKey(shape, "truncate")) == _options(shape)
