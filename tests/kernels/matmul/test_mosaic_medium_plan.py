"""What `medium_plan.choose` takes is what `medium.py` can build, in one wave of blocks."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.kernels.matmul.mosaic import medium
from jaxinfer.kernels.matmul.mosaic.medium_plan import MediumConfig, choose
from jaxinfer.kernels.mosaic import registers
from jaxinfer.planning.named_shapes import SERVED_SHAPES, shape_config


def _problem(B, shapes, matrices, config, ranks=0):
    outputs = tuple(features for features, _ in shapes[::matrices])
    if ranks:  # They are the first output.
        outputs = (ranks * len(outputs), *outputs)
    return medium._Problem(B, shapes[0][1], outputs, matrices, jnp.dtype("bfloat16"), config, ranks)


def _shared_bytes(problem):
    c = problem.config
    return (c.rows + problem.columns) * 64 * 2 * c.depth * c.stages


_FEATURES = st.integers(1, 512).map(lambda n: 64 * n)


@given(
    B=st.integers(1, 40).map(lambda n: 8 * n),
    outputs=st.lists(_FEATURES, min_size=1, max_size=3),
    size=_FEATURES,
    gated=st.booleans(),
    ranks=st.sampled_from([0, 0, 64, 128, 192, 256]),
)
def test_every_product_that_is_taken_can_be_built(B, outputs, size, gated, ranks):
    matrices = 2 if gated else 1
    shapes = [(n, size) for n in outputs[:1] * 2] if gated else [(n, size) for n in outputs]
    config = choose(B, shapes, "bfloat16", matrices=matrices, ranks=ranks)
    if config is None:
        return
    problem = _problem(B, shapes, matrices, config, ranks)
    problem.check()
    blocks = problem.blocks_of_features * config.share_rows * problem.row_blocks
    together = 1 if blocks <= 132 else 2
    assert blocks <= 132 * together
    assert _shared_bytes(problem) * together <= 225 * 1024
    sums = config.group * problem.columns // 128  # of a thread, beside what it needs to multiply
    assert sums <= {1: 192, 2: 192, 3: 96}[problem.consumers]


@pytest.mark.parametrize("name", SERVED_SHAPES)
@pytest.mark.parametrize("B", [32, 64, 128, 192, 256])
def test_published_shapes_have_their_q_k_and_v_in_one_launch(name, B):
    c = shape_config(name)
    features = (c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads)
    assert choose(B, [(n * c.head_dim, c.hidden_size) for n in features], "bfloat16")


@pytest.mark.parametrize(
    ("B", "expected"),
    [
        (32, MediumConfig(96, 64, 3, depth=2)),
        (128, MediumConfig(96, 128, 5, share_rows=2)),
        (192, MediumConfig(96, 192, 4, share_rows=2)),
        (256, MediumConfig(96, 256, 4, group=128) if registers.can_be_moved() else None),
        (264, None),
    ],
)
def test_gate_and_up_of_8b(B, expected):
    assert choose(B, [(12288, 4096)] * 2, "bfloat16", matrices=2) == expected


def test_clusters_that_read_rows_together_compute_ranks_or_none():
    config = MediumConfig(64, 128, 7, share_rows=2)
    problem = _problem(256, [(3072, 1024)] * 2, 2, config, ranks=320)
    assert problem.tiles_by_output == (4, 48)  # 3 tiles would hold the ranks
    assert problem.output_shapes == ((256, 512), (256, 3072))


def test_single_products_of_few_or_many_rows_are_left_to_xla():
    taken = [B for B in (32, 64, 128, 136, 256) if choose(B, [(4096, 12288)], "bfloat16")]
    assert taken == [64, 128]
    assert choose(64, [(1024, 3072)], "bfloat16") is None  # 8 features a block
