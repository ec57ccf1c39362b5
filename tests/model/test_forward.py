"""The forward is a pure function: jit, vmap, grad, remat and a mesh don't change what it says."""

import functools
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.model.forward import forward
from jaxinfer.model.layers.decoder import embed
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import ShardingRules
from tests.model import tiny

CONFIG = tiny.CONFIG


@pytest.fixture(scope="module")
def params():
    return tiny.params(CONFIG)


run = jax.jit(forward, static_argnums=1)


def loss(params, tokens, remat, config=CONFIG):
    logits = forward(params, config, tokens, remat=remat)
    return -jnp.mean(jax.nn.log_softmax(logits[:-1])[jnp.arange(len(tokens) - 1), tokens[1:]])


loss_and_gradient = jax.jit(jax.value_and_grad(loss), static_argnums=(2, 3))


def test_training_code_needs_no_flax():
    code = "import sys, jaxinfer.model.forward; sys.exit('flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_later_tokens_do_not_change_earlier_logits(params):
    tokens = tiny.token_ids(CONFIG, 12)
    changed = tokens.at[7:].set((tokens[7:] + 1) % CONFIG.vocab_size)
    before, after = run(params, CONFIG, tokens), run(params, CONFIG, changed)
    np.testing.assert_allclose(before[:7], after[:7], atol=1e-5)
    assert np.abs(np.asarray(before[7:] - after[7:])).max() > 1e-2


def test_vmap_equals_a_batch(params):
    tokens = tiny.token_ids(CONFIG, 2, 3, 8)
    whole = run(params, CONFIG, tokens)
    mapped = jax.jit(jax.vmap(jax.vmap(lambda row: forward(params, CONFIG, row))))(tokens)
    np.testing.assert_allclose(mapped, whole, atol=1e-5)


def test_remat_gives_the_same_loss_and_gradient_from_fewer_residuals(params, capsys):
    tokens = tiny.token_ids(CONFIG, 16)
    plain = loss_and_gradient(params, tokens, False)
    remat = loss_and_gradient(params, tokens, True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), plain, remat)
    kept = []
    for on in (False, True):
        print_saved_residuals(functools.partial(loss, tokens=tokens, remat=on), params)
        shapes = re.findall(r"^\w+\[([\d,]*)\]", capsys.readouterr().out, re.MULTILINE)
        kept.append(sum(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes))
    assert 0 < kept[1] < kept[0] / 2


def test_gradient_agrees_with_finite_differences(params):
    tokens = tiny.token_ids(CONFIG, 16)  # a length of one program with the test above
    _, gradient = loss_and_gradient(params, tokens, False)
    rng = np.random.default_rng(5)
    # By NumPy, which compiles nothing for the shape of each leaf.
    params = jax.tree.map(np.asarray, params)
    direction = jax.tree.map(lambda p: rng.standard_normal(p.shape).astype(p.dtype), params)
    slope = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, direction)))
    step = 1e-3
    ahead, behind = (
        loss_and_gradient(
            jax.tree.map(lambda p, d, s=s: p + np.float32(s) * d, params, direction), tokens, False
        )[0]
        for s in (step, -step)
    )
    assert float(slope) == pytest.approx(float(ahead - behind) / (2 * step), rel=2e-2)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.exhaustive)]
)
def test_half_precision_gradients_are_finite_and_in_the_parameters_dtype(dtype):
    config = tiny.config(num_hidden_layers=1)
    params, tokens = tiny.params(config, dtype), tiny.token_ids(config, 12)
    _, gradient = loss_and_gradient(params, tokens, True, config)
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == dtype
        assert bool(jnp.isfinite(leaf).all())


def test_a_packed_mask_separates_two_sequences(params):
    tokens = tiny.token_ids(CONFIG, 12)
    segment = jnp.arange(12) // 6
    packed = run(
        params,
        CONFIG,
        tokens,
        positions=jnp.arange(12) % 6,
        attention_mask=segment[:, None] == segment[None, :],
    )
    # What follows a sequence changes nothing in it.
    first, second = (run(params, CONFIG, ids)[:6] for ids in (tokens, jnp.roll(tokens, 6)))
    np.testing.assert_allclose(packed[:6], first, atol=1e-5)
    np.testing.assert_allclose(packed[6:], second, atol=1e-5)


def test_a_fully_masked_row_stays_finite(params):
    tokens = tiny.token_ids(CONFIG, 6)
    logits = run(params, CONFIG, tokens, attention_mask=jnp.zeros(6, bool))
    assert bool(jnp.isfinite(logits).all())


def test_a_mask_of_another_shape_is_refused(params):
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(6,\) or \(6, 6\)"):
        forward(params, CONFIG, tiny.token_ids(CONFIG, 6), attention_mask=jnp.ones(5))


def test_forward_on_a_mesh_equals_one_device(params):
    """GSPMD: parameters split over `tensor` and `data` (fully sharded), tokens over `data`."""
    devices = np.array(jax.devices()).reshape(2, 4)
    mesh = Mesh(devices, ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    config = tiny.config(num_key_value_heads=4, tie_word_embeddings=False, num_hidden_layers=1)
    params = tiny.params(config)
    tokens = tiny.token_ids(config, 4, 8)
    expected = run(params, config, tokens)
    described = abstract_params(config, jnp.float32, mesh, ShardingRules(embed="data"))
    placed = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), params, described)
    rows = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec("data")))
    actual = run(placed, config, rows)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_ids_outside_the_table_are_clamped_not_wrapped(params):
    found = embed(params, jnp.array([-1, CONFIG.vocab_size]))
    table = params["model"]["embed_tokens"]
    np.testing.assert_array_equal(found, table[jnp.array([0, CONFIG.vocab_size - 1])])


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_no_tokens_are_one_clear_error(params, shape):
    with pytest.raises(ValueError, match=re.escape(f"token_ids has shape {shape}; forward needs")):
        forward(params, CONFIG, jnp.zeros(shape, jnp.int32))
