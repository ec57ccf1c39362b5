import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import CapacityError
from jaxinfer.serving.requests.result import PROMPT_LOGPROBS
from jaxinfer.serving.runner.host_inputs import HostInputs
from jaxinfer.serving.runner.runner import Runner
from tests.serving.runner.tiny_runner import (
    CONFIG,
    Loop,
    expected_greedy,
    expected_logits,
    make_runner,
    poison,
    prompts,
    tiny_params,
)

_PROMPTS = prompts(np.random.default_rng(0), [3, 17, 30, 1, 8, 9, 40])


@pytest.fixture(scope="module")
def runner():
    runner = make_runner(swap_space=0.001, preemption_mode="swap")
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def expected():
    return [expected_greedy(prompt, 6) for prompt in _PROMPTS]


def _run(runner, **options):
    loop = Loop(runner, **({"preemption_mode": "recompute"} | options))
    for prompt in _PROMPTS:
        loop.add(prompt)
    return loop.run()


def test_greedy_tokens_equal_a_plain_loop_over_forward(runner, expected):
    assert _run(runner) == expected


def test_reading_each_step_at_once_changes_nothing(runner, expected):
    assert _run(runner, late=False) == expected


def test_chunked_prefill_changes_nothing(runner, expected):
    assert _run(runner, max_num_batched_tokens=7) == expected


def test_unwritten_pages_may_hold_nan(runner, expected):
    poison(runner)
    assert _run(runner) == expected
    runner.reset_cache()


def test_prefix_hits_change_nothing(runner, expected):
    loop = Loop(runner, preemption_mode="recompute")
    for prompt in [*_PROMPTS, *_PROMPTS]:
        loop.add(prompt)
    assert loop.run() == expected * 2
    assert any(request.history.num_prefix_cached_tokens for request in loop.requests)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_changes_nothing(runner, expected, mode):
    loop = Loop(runner, preemption_mode=mode)
    for prompt in _PROMPTS:
        loop.add(prompt)
    for _ in range(4):
        loop.step()
    loop.scheduler.preempt(2)
    poisoned = loop.run()
    assert poisoned == expected
    assert loop.scheduler.num_preemptions


def test_swapped_blocks_come_back_bit_for_bit(runner):
    rng = np.random.default_rng(1)
    shape = runner.resident.kv[0].k.shape
    runner.launcher.resident = runner.resident._replace(
        kv=jax.tree.map(lambda _: jnp.asarray(rng.random(shape), jnp.float32), runner.resident.kv)
    )
    before = jax.tree.map(np.asarray, runner.resident.kv)
    pairs = [(block, host) for host, block in enumerate([5, 1, 30, 7, *range(10, 29)])]
    blocks = runner.launcher._host_blocks
    copies = runner.launcher.block_rows
    blocks.swap(runner.resident.kv, pairs, [], copies)
    runner.launcher.resident = runner.resident._replace(
        kv=jax.tree.map(jnp.zeros_like, runner.resident.kv)
    )
    back = [(block + 1, host) for block, host in pairs]
    runner.launcher.resident = runner.resident._replace(
        kv=blocks.swap(runner.resident.kv, [], back, copies)
    )
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(runner.resident.kv), strict=True):
        new = np.asarray(new)
        for (block, _), (target, _) in zip(pairs, back, strict=True):
            np.testing.assert_array_equal(new[target], old[block])
        assert not new[runner.num_kv_blocks - 1].any()
    runner.reset_cache()


@pytest.fixture(scope="module")
def decodes_several_steps():
    runner = make_runner(num_decode_steps=16)
    yield runner
    runner.close()


def test_multi_step_decodes_change_nothing(decodes_several_steps, expected):
    loop = Loop(decodes_several_steps, multi_step=decodes_several_steps.multi_step)
    for prompt in _PROMPTS[:3]:
        loop.add(prompt, max_tokens=20)
    got = loop.run()
    assert [tokens[:6] for tokens in got] == expected[:3]
    assert got[0] == expected_greedy(_PROMPTS[0], 20)
    assert any(schedule.num_steps == 16 for schedule, _ in loop.results)


def test_a_multi_step_may_run_past_the_longest_sequence(decodes_several_steps):
    prompt = prompts(np.random.default_rng(2), [58])[0]
    loop = Loop(decodes_several_steps, multi_step=decodes_several_steps.multi_step)
    loop.add(prompt, max_tokens=6)
    loop.add(_PROMPTS[0], max_tokens=40)
    got = loop.run()
    assert got[0] == expected_greedy(prompt, 6)
    assert got[1] == expected_greedy(_PROMPTS[0], 40)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_the_mesh_changes_nothing(expected, devices):
    runner = make_runner(devices=devices)
    assert _run(runner) == expected
    runner.close()


def test_seeded_sampling_does_not_depend_on_batch_mates(runner):
    together = Loop(runner, preemption_mode="recompute")
    for prompt in _PROMPTS:
        together.add(prompt, temperature=1.0, seed=7)
    together.run()
    alone = Loop(runner, late=False)
    alone.add(_PROMPTS[2], temperature=1.0, seed=7)
    assert alone.run()[0] == together.requests[2].output_token_ids


def test_log_probabilities_are_those_of_the_models_own_logits(runner):
    loop = Loop(runner, late=False)
    request = loop.add(_PROMPTS[1], temperature=0.7, logprobs=3, seed=1)
    tokens = loop.run()[0]
    logits = expected_logits([*_PROMPTS[1], *tokens])
    exact = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    sampling = [result for _, result in loop.results]
    start = request.num_prompt_tokens - 1
    for i, (token, result) in enumerate(zip(tokens, sampling, strict=True)):
        row = exact[start + i]
        scores = result.sampled
        np.testing.assert_allclose(scores.logprobs[0, 0], row[token], atol=2e-4)
        top = np.argsort(-row, kind="stable")[:20]
        np.testing.assert_array_equal(scores.top_ids[0, 0], top)
        np.testing.assert_allclose(scores.top_logprobs[0, 0], row[top], atol=2e-4)
        assert scores.ranks[0, 0] == 1 + (row > row[token]).sum()


def test_prompt_log_probabilities_equal_forward_whatever_the_chunks(runner):
    prompt = _PROMPTS[6]
    logits = expected_logits(prompt)
    exact = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    loop = Loop(runner, max_num_batched_tokens=13)
    loop.pool.invalidate()
    loop.add(prompt, prompt_logprobs=2, max_tokens=1)
    loop.run()
    seen = {}
    for schedule, result in loop.results:
        for scores in result.readouts.get(PROMPT_LOGPROBS, []):
            for i in range(schedule.rows[0].num_fed):
                seen[schedule.rows[0].start + i + 1] = scores.logprobs[i]
    for position in range(1, len(prompt)):
        value = exact[position - 1, prompt[position]]
        np.testing.assert_allclose(seen[position], value, atol=2e-4)


def test_a_row_with_nan_is_marked_and_leaves_its_neighbours_alone(expected):
    def spoil(logits, state):
        bad = (state.last_token_ids == _PROMPTS[0][-1])[:, None]
        return jnp.where(bad, jnp.nan, logits)

    runner = make_runner(hooks={"logits_processor": spoil})
    loop = Loop(runner, preemption_mode="recompute")
    bad = loop.add(_PROMPTS[0], max_tokens=4)
    good = loop.add(_PROMPTS[1])
    loop.run()
    assert bad.finish_reason == "error"
    clean = _PROMPTS[0][-1] not in [_PROMPTS[1][-1], *expected[1]]
    assert not clean or good.output_token_ids == expected[1]
    runner.close()


@pytest.mark.slow
def test_after_compiling_all_nothing_compiles():
    runner = make_runner()
    runner.compile_all()
    # Once through the loop for what JAX builds around programs, such as transfers.
    rng = np.random.default_rng(3)
    before = runner.num_compilations
    assert before >= len(runner._compiled)
    kinds = [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.8},
        {"repetition_penalty": 1.3},
        {"logprobs": 2, "prompt_logprobs": 1},
    ]
    loop = Loop(runner, late=False)
    for i in range(40):
        prompt = rng.integers(0, CONFIG.vocab_size, int(rng.integers(1, 40))).tolist()
        loop.add(prompt, **(kinds[i % 5] | {"max_tokens": int(rng.integers(1, 7))}))
        loop.step()
    loop.run()
    assert runner.num_compilations == before
    runner.close()


def test_new_weights_are_used_from_the_next_launch_without_a_copy(expected):
    runner = make_runner()
    assert _run(runner) == expected
    other = jax.tree.map(jnp.copy, tiny_params(seed=1))
    runner.update_params(other)
    loop = Loop(runner, preemption_mode="recompute")
    loop.add(_PROMPTS[1])
    assert loop.run()[0] == expected_greedy(_PROMPTS[1], 6, params=other)
    assert runner.resident.params["model"]["norm"] is other["model"]["norm"]
    runner.close()
    assert not other["model"]["norm"].is_deleted()


def test_the_callers_arrays_are_used_without_a_copy(runner):
    given = jax.tree.leaves(tiny_params(CONFIG))
    used = jax.tree.leaves(runner.resident.params)
    assert all(mine is theirs for mine, theirs in zip(used, given, strict=True))


def test_launching_deletes_the_pages_it_was_given(runner):
    before = jax.tree.leaves(runner.resident.kv)
    loop = Loop(runner)
    loop.add([1, 2, 3], max_tokens=2)
    loop.run()
    assert all(leaf.is_deleted() for leaf in before)


def test_of_a_step_that_was_launched_nothing_is_kept_on_the_device(runner, monkeypatch):
    """A small array kept there would move the next steps' temporaries, and so their graphs."""
    kept = []
    read_by = HostInputs.read_by
    monkeypatch.setattr(
        HostInputs, "read_by", lambda self, array: (kept.append(array), read_by(self, array))
    )
    _run(runner)
    assert {array.sharding.memory_kind for array in kept} == {"pinned_host"}


def test_resetting_the_cache_serves_the_next_request(expected):
    runner = make_runner()
    loop = Loop(runner, preemption_mode="recompute")
    loop.add(_PROMPTS[0])
    loop.step()
    for leaf in jax.tree.leaves(runner.resident.kv):
        leaf.delete()  # as a failed step leaves them
    with pytest.raises(Exception, match="deleted"):
        loop.step()
    runner.reset_cache()
    assert _run(runner) == expected
    runner.close()


def test_closing_frees_the_pages_and_keeps_the_callers_arrays():
    runner = make_runner()
    pages = jax.tree.leaves(runner.resident.kv)
    runner.close()
    runner.close()
    assert all(leaf.is_deleted() for leaf in pages)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(tiny_params(CONFIG)))


def test_closing_frees_the_arrays_that_batches_came_in():
    """Not a garbage collection, which `jax_array_garbage_collection_guard` makes an error of."""
    runner = make_runner()
    loop = Loop(runner)
    loop.add([1, 2, 3])
    loop.run()
    arrays = [weakref.ref(slab.array) for slabs in _slabs(runner).values() for slab in slabs]
    assert arrays
    gc.disable()
    try:
        runner.close()
        assert [array() for array in arrays] == [None] * len(arrays)
    finally:
        gc.enable()


def _slabs(runner):
    return runner.launcher._inputs._slabs


def test_a_cache_too_small_for_one_request_names_the_length_that_fits():
    with pytest.raises(CapacityError, match="at most 56"):
        make_runner(block_size=8, num_kv_blocks=8)
    assert isinstance(make_runner(block_size=8, num_kv_blocks=9), Runner)


def test_the_report_counts_blocks_tokens_and_sequences(runner):
    report = runner.report
    assert report.num_kv_blocks == runner.num_kv_blocks == 65
    assert report.num_kv_tokens == 64 * 16
    assert report.full_length_concurrency == pytest.approx(64 * 16 / 64)
    assert report.kv_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(runner.resident.kv))
    assert report.weight_bytes == sum(
        leaf.nbytes for leaf in jax.tree.leaves(runner.resident.params)
    )
    assert report.step_bytes is None
    assert "65 blocks, 1,024 tokens" in str(report)
    assert "numba (fastest measured on CPUs for float32" in str(report)


def test_a_backend_that_is_impossible_here_is_refused():
    with pytest.raises(ValueError, match="attention_backend='mosaic'"):
        make_runner(attention_backend="mosaic")


def test_a_cache_that_spans_processes_is_never_allocated_again(monkeypatch):
    """Other processes need not have failed in the same step."""
    runner = make_runner()
    monkeypatch.setattr(runner, "_is_one_process", False)
    with pytest.raises(RuntimeError, match="several processes can't go back"):
        runner.reset_cache()
    monkeypatch.undo()
    runner.close()
