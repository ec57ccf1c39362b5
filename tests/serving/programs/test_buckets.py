import pytest

from jaxinfer.serving.programs.buckets import choose_buckets
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.sampling.layout import MODES, num_special_rows


def _choose(platform="gpu", **changes):
    sizes = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 40960,
        "block_size": 16,
        "multi_step_length": 1,
    }
    return choose_buckets(**(sizes | changes), platform=platform)


@pytest.mark.parametrize("platform", ["cpu", "gpu"], ids=["on_cpu", "on_gpu"])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 12, 100, 256, 1000])
def test_every_step_fits_a_bucket(platform, max_num_seqs):
    buckets = _choose(platform, max_num_seqs=max_num_seqs, max_num_batched_tokens=2000)
    for rows in range(1, max_num_seqs + 1):
        assert buckets.decode_shape(rows, 2560).rows >= rows
        for tokens in (rows, 2000):
            shape = buckets.prefill_shape(tokens, rows)
            assert shape.tokens >= tokens
            assert shape.rows >= rows
            assert shape in buckets.prefill_shapes()
            for mode in MODES:
                assert shape.rows in buckets.sampler_rows(buckets.single_mode(mode))


@pytest.mark.parametrize("platform", ["cpu", "gpu"], ids=["on_cpu", "on_gpu"])
def test_no_program_has_a_product_with_one_row(platform):
    buckets = _choose(platform, max_num_seqs=1, max_num_batched_tokens=1)
    assert min(buckets.sampler_rows("temperature")) >= 2
    assert min(tokens for tokens, _ in buckets.prefill) >= 2


def test_a_gpu_has_few_sizes_of_single_steps():
    assert _choose().rows == (2, 8, 64, 256)


def test_the_largest_gpu_step_takes_as_many_rows_as_there_are():
    buckets = _choose(max_num_batched_tokens=16_384)
    for size in (8192, 16_384):
        assert [rows for tokens, rows in buckets.prefill if tokens == size] == [256]
    assert buckets.prefill_shape(8192, 16).tokens == 8192
    assert [rows for tokens, rows in buckets.prefill if tokens == 4096] == [8, 256]


def test_steps_of_large_weights_are_padded_less():
    small, large = (_choose(weight_bytes=size) for size in (1 << 30, 16 << 30))
    assert small.prefill_shape(530, 20) == PrefillShape(1024, 256, 2560)
    assert large.prefill_shape(530, 20) == PrefillShape(640, 256, 2560)
    assert large.prefill_shape(530, 2).tokens == 640
    assert large.prefill_shape(1060, 20).tokens == 1280
    assert large.prefill_shape(400, 20).tokens == 512
    assert small.prefill[-1] == large.prefill[-1]
    assert len(large.prefill) - len(small.prefill) <= 6
    assert _choose(weight_bytes=16 << 30, max_num_batched_tokens=1024).prefill[-1] == (1024, 256)


def test_short_contexts_of_many_rows_take_narrow_tables_on_a_gpu():
    buckets = _choose()
    assert buckets.widths == (256, 2560)
    assert buckets.decode_shape(33, 256) == DecodeShape(64, 256)
    assert buckets.decode_shape(33, 257) == DecodeShape(64, 2560)
    assert buckets.decode_shape(8, 1) == DecodeShape(8, 2560)
    assert buckets.prefill_shape(100, 3) == PrefillShape(128, 8, 2560)
    assert _choose(max_model_len=4096).widths == (256,)


def test_many_rows_of_long_contexts_are_padded_to_one_of_few_sizes():
    buckets = _choose(multi_step_length=8)
    assert buckets.decode_shape(65, 256, num_steps=4) == DecodeShape(128, 256)
    assert buckets.decode_shape(65, 257) == DecodeShape(256, 2568)
    assert buckets.decode_shape(65, 257, num_steps=4) == DecodeShape(256, 2568)
    assert buckets.decode_shape(50, 257, num_steps=8) == DecodeShape(64, 2568)


@pytest.mark.parametrize("max_num_seqs", [1, 30, 40, 64, 100, 256, 300, 1000])
def test_every_number_of_rows_finds_its_programs_at_both_widths(max_num_seqs):
    buckets = _choose(max_num_seqs=max_num_seqs, multi_step_length=8)
    for rows in range(1, max_num_seqs + 1):
        steps = buckets.multi_step_steps(rows)
        for width in (1, 256, 257, buckets.widths[-1]):
            for mode in MODES:
                shape = buckets.decode_shape(rows, width, mode=mode)
                assert shape in buckets.decode_shapes()
                assert shape.rows in buckets.sampler_rows(buckets.single_mode(mode))
                shape = buckets.decode_shape(rows, width, mode=mode, num_steps=steps)
                assert (shape, steps) in buckets.multi_step_shapes()
                compiled = buckets.multi_step_modes(shape)
                assert buckets.multi_step_mode(shape, mode) in compiled
                assert shape.rows >= rows
                assert shape.width >= width


def test_a_second_width_costs_few_programs():
    """Of single steps, and of multi-step decodes in each of three modes."""
    one, two = (_choose(multi_step_length=8, max_model_len=length) for length in (4096, 40_960))
    assert len(two.widths) == 1 + len(one.widths) == 2
    assert len(two.decode_shapes()) - len(one.decode_shapes()) <= 2
    assert len(two.multi_step_shapes()) - len(one.multi_step_shapes()) <= 2


@pytest.mark.parametrize("block_size", [8, 16, 64, 128, 256])
def test_a_table_on_a_gpu_holds_whole_tiles_of_keys(block_size):
    for width in _choose(block_size=block_size, multi_step_length=8).widths:
        assert width * block_size % 128 == 0


def test_mode_full_takes_few_of_the_decode_buckets():
    buckets = _choose(multi_step_length=8)
    assert [buckets.decode_shape(n, 256, mode="full").rows for n in (3, 9, 65)] == [8, 64, 256]
    assert buckets.sampler_rows("full") == [8, 64, 256]
    multi_step_decodes = [
        shape
        for shape, _ in buckets.multi_step_shapes()
        if "full" in buckets.multi_step_modes(shape)
    ]
    assert sorted((shape.rows, shape.width) for shape in multi_step_decodes) == [
        (8, 2568),
        (32, 2568),
        (64, 2568),
        (256, 2568),
    ]


@pytest.mark.parametrize(
    ("rows", "special", "mode"),
    [
        (32, 1, "full"),
        (33, 1, "mixed"),
        (64, 8, "mixed"),
        (64, 9, "full"),
        (65, 16, "mixed"),
        (65, 17, "full"),
        (256, 32, "mixed"),
        (256, 33, "full"),
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_few_rows_of_many_that_need_everything_are_sampled_apart(platform, rows, special, mode):
    buckets = _choose(platform, multi_step_length=8)
    assert buckets.sampler_mode(rows, special, "full", truncates=False) == mode
    assert buckets.sampler_mode(rows, special, "full", truncates=True) == "full"
    assert buckets.sampler_mode(rows, 0, "truncate", truncates=True) == "truncate"
    for steps in (1, buckets.multi_step_steps(rows)):
        shape = buckets.decode_shape(rows, 300, mode=mode, num_steps=steps)
        compiled = buckets.multi_step_modes(shape)
        assert mode in compiled if steps > 1 else shape.rows in buckets.sampler_rows(mode)
        assert mode != "mixed" or special <= num_special_rows(shape.rows)


def test_multi_step_decodes_of_many_rows_have_no_greedy_programs_of_their_own_on_a_gpu():
    buckets = _choose(max_model_len=40_960, multi_step_length=8)
    modes = {shape: buckets.multi_step_modes(shape) for shape, _ in buckets.multi_step_shapes()}
    assert {shape.rows for shape, each in modes.items() if "greedy" in each} == {2, 8}
    assert all("temperature" in each for each in modes.values())
    assert buckets.sampler_rows("greedy") == []


def test_a_gpu_makes_multi_step_decodes_of_any_number_of_rows_and_shorter_ones_of_many():
    buckets = _choose(multi_step_length=8)
    assert [buckets.multi_step_steps(rows) for rows in (1, 64, 65, 256)] == [8, 8, 4, 4]
    assert buckets.decode_shape(9, 256, num_steps=8).rows == 16
    assert buckets.decode_shape(70, 256, num_steps=4).rows == 128
    # Rows that only wait for their last tokens run, and are not in the multi-step decode.
    assert buckets.decode_shape(60, 256, num_steps=4).rows == 128


@pytest.mark.parametrize(("most", "steps"), [(1, 1), (2, 2), (3, 2), (16, 8)])
def test_multi_step_decodes_of_many_rows_follow_the_length_of_the_others(most, steps):
    assert _choose(multi_step_length=most).multi_step_steps(256) == steps


def test_without_multi_step_decodes_there_are_no_programs_for_them():
    assert _choose(multi_step_length=1).multi_step_shapes() == []


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("rows", [1, 5, 100, 256])
def test_every_multi_step_finds_its_program(platform, rows):
    buckets = _choose(platform, multi_step_length=8, max_num_seqs=rows)
    assert buckets.multi_step_decodes[-1][0] == max(rows, 2)
    for running in range(1, rows + 1):
        steps = buckets.multi_step_steps(running)
        shape = buckets.decode_shape(running, 1, num_steps=steps)
        assert (shape, steps) in buckets.multi_step_shapes()


def test_a_cpu_compiles_few_programs():
    buckets = _choose("cpu", max_num_batched_tokens=2048, max_model_len=4096)
    assert len(buckets.prefill_shapes()) + len(buckets.decode_shapes()) <= 16


def test_cpu_decode_buckets_are_dense_where_padding_costs_most():
    buckets = _choose("cpu", multi_step_length=8)
    assert buckets.rows == (4, 16, 32, 48, 64, 128, 256)
    assert [rows for rows, _ in buckets.multi_step_decodes] == [
        4,
        16,
        24,
        32,
        40,
        48,
        56,
        64,
        128,
        256,
    ]
    assert {steps for _, steps in buckets.multi_step_decodes} == {8}
    assert buckets.decode_shape(33, 1, num_steps=8).rows == 40


def test_tables_have_room_for_the_surplus_of_a_multi_step():
    assert _choose(max_model_len=4096, multi_step_length=17).widths[-1] >= 257
    assert _choose("cpu", max_model_len=4096, multi_step_length=17).widths[-1] == 257


def test_a_step_beyond_the_largest_bucket_is_an_error():
    buckets = _choose()
    with pytest.raises(ValueError, match="8193 tokens in 1 rows"):
        buckets.prefill_shape(8193, 1)
    with pytest.raises(ValueError, match="257 exceeds the largest bucket, 256"):
        buckets.decode_shape(257, 1)
