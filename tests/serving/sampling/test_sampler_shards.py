"""A vocabulary split over devices gives the same tokens, with small exchanges only."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.result import NO_TOKEN, NOT_FINITE, OK
from jaxinfer.serving.sampling.sampler import sample
from tests.serving.sampling.sampling_reference import make_rows, pack, packed_specs, run

ROWS, VOCAB = 16, 136
PROMPT, OUTPUT = [1, 2, 133], [4, 4, 70]
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(min_p=0.05, temperature=2.0),
    SamplingParams(top_k=6),
    SamplingParams(top_p=0.5, temperature=3.0),
    SamplingParams(top_k=30, top_p=0.9, temperature=2.0),
    SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, logprobs=3),
    SamplingParams(logit_bias={0: 2.0, 135: 2.0}, allowed_token_ids=[0, 16, 17, 70, 135]),
] * 2


@cache
def sharded_sampler(num_devices: int, mode: str, custom: bool = False):
    mesh = jax.make_mesh(
        (num_devices,),
        ("tensor",),
        devices=jax.devices()[:num_devices],
        axis_types=(AxisType.Auto,),
    )
    extra = {}
    if custom:
        extra = {
            "logits_processor": lambda logits, state: logits.at[:, 99].set(50.0),
            "sampler": lambda logits, state, keys: jnp.argmax(logits, 1).astype(jnp.int32),
        }
    step = partial(sample, mode=mode, axis="tensor", **extra)
    specs = (PartitionSpec(None, "tensor"), packed_specs(mode))
    return jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    )


def run_sharded(logits: np.ndarray, num_devices: int, mode: str, custom: bool = False):
    rows = make_rows(PARAMS, VOCAB, prompt=PROMPT, output=OUTPUT)
    arrays = pack(rows, mode, batch_size=ROWS, vocab_size=VOCAB)
    output = sharded_sampler(num_devices, mode, custom)(logits, arrays)
    return jax.tree.map(np.asarray, jax.block_until_ready(output))


def many_ties() -> np.ndarray:
    return np.round(np.random.default_rng(0).normal(size=(ROWS, VOCAB)) * 3).astype(np.float32)


@pytest.mark.parametrize(
    ("mode", "num_devices"),
    [
        ("temperature", 8),
        ("truncate", 1),
        ("truncate", 2),
        ("truncate", 8),
        ("full", 8),
    ],
)
def test_shards_give_the_tokens_of_one_device(mode: str, num_devices: int) -> None:
    logits = many_ties()
    whole = run(logits, PARAMS, mode=mode, prompt=PROMPT, output=OUTPUT)
    split = run_sharded(logits, num_devices, mode)
    assert np.array_equal(whole.tokens, split.tokens)
    assert np.array_equal(whole.status, split.status)
    for name in ("logprobs", "top_logprobs"):
        if getattr(whole, name) is not None:
            np.testing.assert_allclose(getattr(whole, name), getattr(split, name), rtol=1e-5)
    for name in ("top_ids", "ranks"):
        assert np.array_equal(getattr(whole, name), getattr(split, name))


@pytest.mark.parametrize("mode", ["temperature", "truncate"])
def test_a_broken_value_on_one_device_is_seen_by_all(mode: str) -> None:
    logits = many_ties()
    sound = run_sharded(logits, 8, mode)
    logits[2, 130] = np.nan
    logits[5, 3] = np.inf
    logits[7] = -np.inf
    logits[9, :] = np.nan
    output = run_sharded(logits, 8, mode)
    broken = [2, 5, 7, 9]
    assert output.status[np.array(broken)].tolist() == [
        NOT_FINITE,
        NOT_FINITE,
        NO_TOKEN,
        NOT_FINITE,
    ]
    assert np.flatnonzero(output.status != OK).tolist() == broken
    assert ((output.tokens >= 0) & (output.tokens < VOCAB)).all()
    assert np.array_equal(np.delete(output.tokens, broken), np.delete(sound.tokens, broken))


def test_custom_callables_see_the_whole_vocabulary() -> None:
    output = run_sharded(many_ties(), 8, "temperature", custom=True)
    assert (output.tokens == 99).all()
    assert (output.status == OK).all()


def test_logits_are_never_gathered() -> None:
    """Every exchange is far smaller than the logits, unless a custom callable needs them."""
    rows = make_rows(PARAMS, VOCAB)
    arrays = pack(rows, "truncate", batch_size=ROWS, vocab_size=VOCAB)
    logits = jax.ShapeDtypeStruct((ROWS, VOCAB), jnp.float32)

    def exchanged(custom: bool) -> int:
        jaxpr = jax.make_jaxpr(sharded_sampler(8, "truncate", custom))(logits, arrays)
        return max(collective_sizes(jaxpr.jaxpr))

    assert exchanged(custom=False) <= ROWS * 8 * 2
    assert exchanged(custom=True) == ROWS * VOCAB


def collective_sizes(jaxpr) -> list[int]:
    sizes = []
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith(("psum", "pmax", "all_gather")):
            sizes.extend(variable.aval.size for variable in equation.outvars)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                sizes.extend(collective_sizes(inner))
    return sizes
