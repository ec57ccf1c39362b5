"""An engine answers the same whatever its caller has set in JAX, and changes none of it."""

import concurrent.futures
import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxinfer import LLM, ParamsMapping, SamplingParams, ShardingRules, forward
from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving.compile.jax_settings import JaxSettings, check_matmul_precision
from jaxinfer.serving.compile.program_store import identity_of
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    PROMPTS,
    SETTINGS,
    reference_logprobs,
    small_llm,
    small_params,
)

# In the settings' names: of platforms, other processes, files, profiles. No step reads them.
_NOT_OF_STEPS = re.compile(
    "platform|visible_devices|cpu|cross_host|distributed|mock|backend|num_process|mtls|proxy|cache"
    "|dump|pgle|serialization|export|preemption_service|recoverability|share_binary|client"
)
_DRAWN = SamplingParams(
    temperature=1.0, seed=3, max_tokens=6, ignore_eos=True, top_k=50, repetition_penalty=1.1, n=2
)
_BIASED = GREEDY.clone(logit_bias={5: 3.0}, bad_words=None, frequency_penalty=0.5)
_MAPPING = ParamsMapping.hugging_face(CONFIG)

# What trainers set, or a debugger for them: the other value of each.
_WIDELY_USED: dict[str, Any] = {
    "jax_enable_x64": True,
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "standard",
    "jax_transfer_guard": "disallow_explicit",
    "jax_transfer_guard_host_to_device": "disallow",
    "jax_transfer_guard_device_to_host": "disallow",
    "jax_transfer_guard_device_to_device": "disallow",
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_debug_key_reuse": True,
    "jax_check_tracer_leaks": True,
    "jax_enable_checks": True,
    "jax_default_matmul_precision": "highest",
    "jax_default_prng_impl": "rbg",
    "jax_enable_custom_prng": True,
    "jax_legacy_prng_key": "error",
    "jax_threefry_partitionable": False,
    "jax_log_compiles": True,
    "jax_explain_cache_misses": True,
    "jax_no_tracing": True,
    "jax_no_execution": True,
    "jax_array_garbage_collection_guard": "fatal",
    "jax_error_checking_behavior_nan": "raise",
    "jax_use_shardy_partitioner": False,
}


def _others() -> Iterator[tuple[str, Any]]:
    """Every other value of every other setting of this JAX that has a few."""
    for name, (kind, _, keywords) in sorted(jax.config.meta.items()):
        if _NOT_OF_STEPS.search(name) or "matmul_precision" in name:
            continue
        now = jax.config.values[name]
        choices = keywords.get("enum_values") or keywords.get("enum_class") or []
        for value in [not now] if kind is bool else list(choices):
            if value != now and (name, getattr(value, "value", value)) not in _WIDELY_USED.items():
                yield name, value
    yield "jax_random_seed_offset", 7


_CASES = [
    pytest.param(*case, id=f"{case[0]}={case[1]}", marks=pytest.mark.slow)
    for case in _WIDELY_USED.items()
] + [
    pytest.param(*case, id=f"{case[0]}={case[1]}", marks=pytest.mark.exhaustive)
    for case in _others()
]


@contextlib.contextmanager
def _set(values: dict[str, Any]) -> Iterator[None]:
    before = {name: jax.config.values[name] for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextlib.contextmanager
def _a_trainers() -> Iterator[None]:
    """All at once, in a mesh of its own, with devices that are not the engine's."""
    with _set(_WIDELY_USED | {"jax_default_device": jax.devices()[3]}), jax.set_mesh(_mesh()):
        yield


def _mesh(kind: AxisType = AxisType.Explicit) -> jax.sharding.Mesh:
    return jax.make_mesh((2,), ("mine",), axis_types=(kind,))


def _used(llm: LLM) -> list[Any]:
    """Tokens of all that an engine does, with other weights meanwhile."""
    outputs = llm.generate(PROMPTS, [GREEDY, _DRAWN.clone(n=1), _BIASED], use_tqdm=False)
    assert [output.error for output in outputs] == [None] * 3
    samples = llm.generate(PROMPTS[0], _DRAWN, use_tqdm=False)[0].outputs
    llm.update_params(small_params(), _MAPPING)
    rollouts = llm.rollout(PROMPTS, GREEDY)
    (scores,) = llm.score([PROMPTS[2]])
    np.testing.assert_allclose(scores.token_logprobs[1:], _scores(), atol=1e-3)
    return [
        [output.outputs[0].token_ids for output in outputs],
        [sample.token_ids for sample in samples],
        rollouts.completion_ids.tolist(),
    ]


@functools.cache
def _scores() -> np.ndarray:
    with JaxSettings(None, "strict").held():
        return reference_logprobs(PROMPTS[2])[np.arange(len(PROMPTS[2]) - 1), PROMPTS[2][1:]]


@pytest.fixture(scope="module")
def earlier() -> Iterator[LLM]:
    with small_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(earlier) -> list[Any]:
    return _used(earlier)


@pytest.mark.filterwarnings("ignore")  # some settings warn of themselves
@pytest.mark.parametrize(("name", "value"), _CASES)
def test_an_engine_answers_the_same_whatever_is_set_before_and_after_its_start(
    earlier, expected, name, value
):
    with _set({name: value}):
        assert _used(earlier) == expected
        with small_llm() as later:
            assert _used(later) == expected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_an_engine_answers_the_same_under_all_that_is_widely_used(earlier, expected):
    with _a_trainers():
        assert _used(earlier) == expected
        with small_llm() as later:
            assert _used(later) == expected


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
def test_the_mesh_around_a_call_is_not_the_engines(earlier, expected, kind):
    with jax.set_mesh(_mesh(kind)), small_llm() as llm:
        assert _used(llm) == expected
        assert _used(earlier) == expected
        assert jax.sharding.get_mesh() == _mesh(kind)


def test_settings_of_the_calling_thread_alone_do_not_matter_either(expected):
    def start_and_use() -> list[Any]:
        with (
            jax.enable_x64(True),
            jax.numpy_rank_promotion("raise"),
            jax.transfer_guard("disallow"),
            jax.disable_jit(),
            jax.debug_nans(True),
            jax.default_device(jax.devices()[1]),
            jax.set_mesh(_mesh()),
            small_llm() as llm,
        ):
            return _used(llm)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(start_and_use).result() == expected


def _plus_ramp(logits: jax.Array, state: Any) -> jax.Array:
    return logits + 0.01 * jnp.arange(logits.shape[-1], dtype=logits.dtype)


_KINDS = {
    "ahead": {"compile_ahead": True},
    "host arrays": {"params": None},
    "two devices": {"tensor_parallel_size": 2},
    "two replicas": {"data_parallel_size": 2},
    "the caller's function": {"logits_processor": _plus_ramp},
    "mapped": {"mapping": _MAPPING},
    "swapping": {"preemption_mode": "swap", "swap_space": 0.01},
}
_QUICKEST = ("host arrays", "two devices", "the caller's function")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in _QUICKEST else pytest.mark.exhaustive)
        for kind in _KINDS
    ],
)
def test_every_kind_of_engine_runs_under_all_of_them_at_once(kind):
    options = dict(_KINDS[kind])
    if "params" in options:
        options["params"] = jax.tree.map(np.asarray, small_params())

    def use(llm: LLM) -> list[Any]:
        answers = _used(llm)
        if kind == "mapped":
            llm.sleep(level=1)
            llm.wake_up()
        llm.reset_prefix_cache()
        return [*answers, *_used(llm)]

    with small_llm(**options) as llm:
        expected = use(llm)
    with _a_trainers(), small_llm(**options) as llm:
        assert use(llm) == expected
    with small_llm(**options) as llm, _a_trainers():
        assert use(llm) == expected


@pytest.mark.slow
def test_a_checkpoint_is_loaded_under_all_of_them_at_once():
    sizes = {name: SETTINGS[name] for name in SETTINGS}
    with LLM(**sizes) as llm:
        expected = llm.generate("Once upon a time", GREEDY, use_tqdm=False)[0].outputs[0].text
    with _a_trainers(), LLM(**sizes) as llm:
        outputs = llm.generate("Once upon a time", GREEDY, use_tqdm=False)
    assert outputs[0].outputs[0].text == expected


def test_weights_on_a_mesh_with_explicit_axes_are_served(expected):
    mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    rules = ShardingRules(vocab="tp", heads="tp", kv_heads="tp", intermediate="tp")

    def place(leaf: jax.Array) -> jax.Array:
        spec = PartitionSpec("fsdp", "tp") if leaf.ndim == 2 else PartitionSpec("fsdp")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    trained = jax.tree.map(place, small_params())
    with jax.set_mesh(mesh), small_llm(params=trained, mapping=_MAPPING, rules=rules) as llm:
        llm.update_params(trained, _MAPPING)
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == expected[0][0]


def test_the_callers_settings_stay_as_they_were():
    def values() -> dict[str, Any]:
        names = [name for name in jax.config.values if hasattr(jax.config, name)]
        return {name: getattr(jax.config, name) for name in names}

    with jax.debug_nans(True), jax.set_mesh(_mesh()):
        before = values()
        with small_llm() as llm:
            assert values() == before
            assert jax.sharding.get_mesh() == _mesh()
            llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert values() == before
    assert jax.sharding.get_mesh().empty


@pytest.mark.parametrize(("name", "value"), _WIDELY_USED.items())
def test_programs_are_found_on_disk_under_other_settings_too(name, value):
    def identity() -> str:
        with JaxSettings(None, "strict").held():
            return identity_of("a")

    before = identity()
    with _set({name: value}):
        assert identity() == before


def test_the_settings_held_change_no_program():
    def lowered() -> str:
        tokens = jax.ShapeDtypeStruct((4, 8), jnp.int32)
        return jax.jit(lambda p, t: forward(p, CONFIG, t)).lower(small_params(), tokens).as_text()

    before = lowered()
    with JaxSettings.here().held():
        assert lowered() == before


def test_what_an_engine_adopts_is_what_holds_at_its_start():
    with jax.default_matmul_precision("highest"), jax.numpy_dtype_promotion("standard"):
        settings = JaxSettings.here()
    with _set({"jax_default_matmul_precision": "bfloat16"}), settings.held():
        assert JaxSettings.here() == settings
        assert jax.config.jax_default_matmul_precision == "highest"


def test_a_precision_that_the_device_lacks_is_an_error_at_the_start():
    with jax.default_matmul_precision("TF32_TF32_F32"):
        with pytest.raises(ValueError, match="jax_default_matmul_precision is 'TF32_TF32_F32'"):
            small_llm()
        with pytest.raises(ValueError, match="set another, or None, before the engine starts"):
            check_matmul_precision(make_mesh(1), jnp.float32)


@pytest.mark.parametrize("name", ["jax_enable_x64", "jax_numpy_rank_promotion"])
def test_forward_takes_a_trainers_types_and_ranks(name):
    tokens = jnp.arange(8, dtype=jnp.int32)[None]
    expected = forward(small_params(), CONFIG, tokens)
    with _set({name: _WIDELY_USED[name]}):
        gradient = jax.grad(lambda params: forward(params, CONFIG, tokens).sum())(small_params())
        logits = forward(small_params(), CONFIG, tokens)
    assert logits.dtype == gradient["model"]["norm"].dtype == jnp.float32
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_forward_runs_in_a_mesh_with_explicit_axes():
    mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=(AxisType.Explicit,) * 2)
    tokens = jnp.arange(32, dtype=jnp.int32).reshape(4, 8)
    expected = np.asarray(forward(small_params(), CONFIG, tokens))

    def split(leaf: jax.Array) -> jax.Array:
        spec = PartitionSpec("fsdp", "tp") if leaf.ndim == 2 else PartitionSpec("fsdp")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    def logits(params: Any, tokens: jax.Array) -> jax.Array:
        return forward(params, CONFIG, tokens)

    by_rows = PartitionSpec("fsdp", None, None)
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(jax.jit(logits)(small_params(), tokens), expected, atol=1e-5)
        trained = jax.tree.map(split, small_params())
        auto = jax.jit(jax.sharding.auto_axes(logits, out_sharding=by_rows))
        np.testing.assert_allclose(auto(trained, tokens), expected, atol=1e-4)
