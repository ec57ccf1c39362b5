"""Replicas that compute prompts for others: the same answers, and no prompt beside decodes."""

import threading
import time

import numpy as np
import pytest

from jaxinfer import EngineConfig, SamplingParams, StructuredOutputsParams
from jaxinfer.testing import tiny_params
from tests.serving.small_llm import CONFIG, GREEDY, ids, small_llm, small_params

slow = pytest.mark.slow("alone")  # their engines compile programs of their own
APART = {"data_parallel_size": 2, "prefill_replicas": 1, "kv_offloading_size": 0.01}
"""Without a compiled shape of its own, beside those of copies."""
BLOCK = 16


def prompts_of(lengths, seed):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, CONFIG.vocab_size, length).tolist() for length in lengths]


def generate(llm, prompts, params=GREEDY):
    return llm.generate(prompts, params, use_tqdm=False)


def answers(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def plain(tokenizer):
    with small_llm(tokenizer=tokenizer) as llm:
        yield llm


@pytest.fixture(scope="module")
def llm(tokenizer):
    with small_llm(tokenizer=tokenizer, **APART) as llm:
        generate(llm, prompts_of([50, 40, 50, 40], 99))  # compiles, for which copies would not wait
        llm.reset_prefix_cache()
        yield llm


def handovers(llm):
    return llm._loaded.engine._apart.handovers


def counts(llm):
    return llm._loaded.engine.counts().handovers


def prefill_tokens(replica):
    return replica.engine.counts().steps.prefill_tokens


def assert_nothing_is_kept(llm):
    registry, group = handovers(llm), llm._loaded.engine
    deadline = time.monotonic() + 10  # for aborts behind a step
    while any(member.num_requests for member in group._members) and time.monotonic() < deadline:
        llm._handle.driver.call(group._apart.take_ready)
        time.sleep(0.001)
    assert not len(registry)
    assert not registry._waiting
    assert (registry._tier.num_pins, registry._tier.num_reserved) == (0, 0)
    assert not group._apart
    for member in group._members:
        assert (member.num_requests, member.num_sequences) == (0, 0)
        assert (member.load, member.num_away) == (0, 0)
        scheduler = member.started.scheduler
        scheduler.check_invariants()
        assert not scheduler.has_unfinished
        assert scheduler.pool.num_free_blocks == scheduler.pool.num_usable_blocks
        transfers = member.started.runner.transfers
        member.replica.call(member.started.runner.await_launches)
        transfers.settle()
        assert (transfers._num_staged, transfers.num_leaving) == (0, 0)


@pytest.fixture(autouse=True)
def no_blocks_are_lost(request):
    """Neither in an engine nor in the tier."""
    yield
    if "llm" in request.fixturenames:
        assert_nothing_is_kept(request.getfixturevalue("llm"))


SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=6, ignore_eos=True)


@slow
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SAMPLED.clone(seed=3),
        SAMPLED.clone(seed=4, n=3),
        SAMPLED.clone(seed=5, logprobs=2, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=1.0, seed=6, max_tokens=12, stop=["a", "e", "1"]),
        SamplingParams(
            seed=7, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[ab]{3}c")
        ),
        GREEDY.clone(prompt_logprobs=1),
    ],
    ids=["greedy", "sampled", "n", "penalties", "stop", "grammar", "prompt logprobs"],
)
def test_answers_are_those_of_one_engine(llm, plain, params):
    prompts = prompts_of([50, 3, 33, 49, 17, 40, 48], 1)
    llm.reset_prefix_cache()
    before = counts(llm)
    got, wanted = generate(llm, prompts, params), generate(plain, prompts, params)
    assert answers(got) == answers(wanted)
    assert [o.outputs[0].text for o in got] == [o.outputs[0].text for o in wanted]
    assert [o.outputs[0].finish_reason for o in got] == [o.outputs[0].finish_reason for o in wanted]
    after = counts(llm)
    if params.prompt_logprobs is None:
        # Blocks before the last token, of prompts with two or more of them.
        assert after.prompts - before.prompts == 5
        assert after.blocks - before.blocks == 3 + 2 + 3 + 2 + 2
        assert [output.num_cached_tokens for output in got] == [0] * 7
    else:
        assert after.prompts == before.prompts
    assert after.recomputed_prompts == before.recomputed_prompts


@slow
def test_a_prompt_that_comes_beside_decodes_gives_them_no_prefill_step(llm, plain):
    decoder, prefiller = llm._loaded.replicas
    running, late = prompts_of([5, 6], 2), prompts_of([52, 47, 61], 3)
    long = GREEDY.clone(max_tokens=40)
    wanted = ids([*generate(plain, running, long), *generate(plain, late, SHORT)])
    decoded = prefill_tokens(decoder)
    computed = prefill_tokens(prefiller)
    launches = []
    launch = decoder.runner.launch
    decoder.runner.launch = lambda schedule: (launches.append(schedule), launch(schedule))[1]
    try:
        got = generate(llm, [*running, *late], [long] * 2 + [SHORT] * 3)
    finally:
        decoder.runner.launch = launch
    assert ids(got) == wanted
    remainders = 52 - 48, 47 - 32, 61 - 48
    assert prefill_tokens(prefiller) - computed == 48 + 32 + 48
    assert prefill_tokens(decoder) - decoded == 5 + 6 + sum(remainders)
    assert max(row.num_fed for schedule in launches for row in schedule.rows) <= max(remainders)


SHORT = GREEDY.clone(max_tokens=2)


@slow
def test_a_conversation_goes_on_where_it_is_cached(llm):
    (prompt,) = prompts_of([40], 4)
    (first,) = generate(llm, [prompt])
    computed, before = prefill_tokens(llm._loaded.replicas[1]), counts(llm)
    again = [*prompt, *first.outputs[0].token_ids, 1, 2, 3]
    (second,) = generate(llm, [again])
    assert second.num_cached_tokens == 32
    assert prefill_tokens(llm._loaded.replicas[1]) == computed
    assert counts(llm) == before


@slow
def test_only_what_the_decode_replica_lacks_is_handed_over(llm, plain):
    (prompt,) = prompts_of([60], 5)
    generate(llm, [prompt[:20]])  # 16 of its tokens are cached where it is decoded
    before = counts(llm)
    (got,) = generate(llm, [prompt], SHORT)
    assert ids([got]) == ids(generate(plain, [prompt], SHORT))
    assert counts(llm).blocks - before.blocks == 2
    assert got.num_cached_tokens == 16


@slow
def test_prompts_without_an_answer_are_computed_by_prefill_replicas(llm, plain):
    prompts = prompts_of([40, 20], 6)
    decoder, prefiller = llm._loaded.replicas
    before = prefill_tokens(decoder), prefill_tokens(prefiller)
    scores = [output.token_logprobs[1:] for output in llm.score(prompts)]
    for got, wanted in zip(scores, plain.score(prompts), strict=True):
        np.testing.assert_allclose(got, wanted.token_logprobs[1:], atol=1e-4)
    assert prefill_tokens(decoder) == before[0]
    assert prefill_tokens(prefiller) == before[1] + 60


@slow
def test_each_request_is_counted_once(llm):
    prompts = prompts_of([50, 40], 7)
    before = llm._loaded.engine.counts()
    generate(llm, prompts)
    after = llm._loaded.engine.counts()
    assert after.prompt_tokens - before.prompt_tokens == 90
    assert after.queried_tokens - before.queried_tokens == 90
    assert after.cached_prompt_tokens == before.cached_prompt_tokens
    ends = {reason: after.finished[reason] - before.finished[reason] for reason in after.finished}
    assert ends == {"stop": 0, "length": 2, "abort": 0, "error": 0}
    named = {metric.name: metric for metric in llm.get_metrics()}
    assert named["jaxinfer:handed_over_tokens"].value == after.handovers.tokens > 0
    assert named["jaxinfer:handover_seconds"].value > 0


@slow
def test_new_weights_get_no_block_of_old_ones(llm):
    prompts = prompts_of([50, 40], 8)
    old = ids(generate(llm, prompts))
    llm.update_params(tiny_params(seed=5))
    before = counts(llm)
    new = generate(llm, prompts)
    with small_llm(params=tiny_params(seed=5)) as other:
        assert ids(new) == ids(generate(other, prompts)) != old
    assert [output.num_cached_tokens for output in new] == [0, 0]
    assert counts(llm).blocks - before.blocks == 5
    llm.update_params(small_params())
    assert ids(generate(llm, prompts)) == old


@slow
def test_engines_that_slept_go_on(llm, plain):
    prompts = prompts_of([50, 40], 9)
    llm.sleep()
    llm.wake_up()
    before = counts(llm)
    assert ids(generate(llm, prompts)) == ids(generate(plain, prompts))
    assert counts(llm).blocks - before.blocks == 5


@slow
def test_a_step_that_raises_costs_its_computation(llm, plain, monkeypatch):
    prompts = prompts_of([50, 40, 45], 10)
    wanted = ids(generate(plain, prompts))
    for replica in llm._loaded.replicas:
        launch, broken = replica.runner.launch, []

        def raise_once(schedule, launch=launch, broken=broken):
            if not broken:
                broken.append(schedule)
                raise RuntimeError("a step that was to fail")
            return launch(schedule)

        monkeypatch.setattr(replica.runner, "launch", raise_once)
        assert ids(generate(llm, prompts)) == wanted
        assert broken
        llm.reset_prefix_cache()


@slow
@pytest.mark.parametrize("phase", ["prefill", "copy", "decode"])
def test_an_abort_in_each_phase_leaves_nothing(llm, phase):
    decoder, prefiller = llm._loaded.replicas
    gate, reached = threading.Event(), threading.Event()
    place, name = {
        "prefill": (prefiller.runner, "launch"),
        "copy": (prefiller.runner.transfers, "_store"),
        "decode": (decoder.runner, "launch"),
    }[phase]
    original = getattr(place, name)

    def held(*args):
        reached.set()
        gate.wait(0.05 if phase != "copy" else 10)
        return original(*args)

    setattr(place, name, held)
    stream = llm.stream(prompts_of([50], hash(phase) % 1000)[0], GREEDY.clone(max_tokens=12))
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    try:
        assert reached.wait(30)
        group, driver = llm._loaded.engine, llm._handle.driver
        keys = driver.call(lambda: list(group._front._requests))
        assert driver.call(lambda: [group.abort(key) for key in keys]) == [True]
        gate.set()
        reader.join(30)
        assert not reader.is_alive()
    finally:
        gate.set()
        setattr(place, name, original)
    deadline = time.monotonic() + 10
    while llm.has_unfinished_requests():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@slow
def test_a_copy_that_fails_costs_its_computation(llm, plain, monkeypatch):
    prompts = prompts_of([50, 40], 11)
    transfers = llm._loaded.replicas[1].runner.transfers
    monkeypatch.setattr(transfers, "_on_host", "no place")
    before = counts(llm)
    assert ids(generate(llm, prompts)) == ids(generate(plain, prompts))
    assert counts(llm).recomputed_prompts - before.recomputed_prompts == 2


@slow
def test_a_tier_without_room_for_all_hands_over_what_it_holds(llm, plain, monkeypatch):
    monkeypatch.setattr(handovers(llm)._tier, "num_blocks", 4)
    prompts = prompts_of([60, 50, 62, 40], 12)
    before = counts(llm)
    assert ids(generate(llm, prompts)) == ids(generate(plain, prompts))
    after = counts(llm)
    assert after.recomputed_prompts > before.recomputed_prompts
    assert after.prompts > before.prompts


@slow
def test_a_dead_prefill_replica_costs_its_computation(plain):
    prompts = prompts_of([50, 40, 45], 13)
    wanted = ids(generate(plain, prompts))
    with small_llm(**APART) as llm:
        prefiller = llm._loaded.replicas[1]

        def fail(*_):
            raise RuntimeError("a device that was to be lost")

        prefiller.runner.launch = prefiller.runner.reset_cache = fail
        assert ids(generate(llm, prompts)) == wanted
        assert llm._loaded.engine._dead == {1}
        assert counts(llm).recomputed_prompts == 3
        assert ids(generate(llm, prompts_of([50, 40, 45], 13))) == wanted
        assert llm.score([prompts[0]])[0].token_logprobs[1] < 0
        assert not len(handovers(llm))
        assert handovers(llm)._tier.num_reserved == 0


@slow
@pytest.mark.parametrize(
    "options",
    [
        {"data_parallel_size": 3, "prefill_replicas": 2},
        {"tensor_parallel_size": 2},
        {"kv_cache_dtype": "int8"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        {"preemption_mode": "swap", "swap_space": 0.001},
    ],
    ids=lambda options: next(iter(options)),
)
def test_answers_with_other_features(options):
    prompts = prompts_of([50, 3, 33, 49, 17, 40, 48], 14)
    alone = {name: value for name, value in options.items() if "replicas" not in name}
    alone["data_parallel_size"] = 1
    with small_llm(**alone) as one:
        wanted = ids(generate(one, prompts))
    with small_llm(**(APART | options)) as llm:
        for _ in range(2):
            assert ids(generate(llm, prompts)) == wanted
            llm.reset_prefix_cache()
        assert counts(llm).prompts > 0
        assert_nothing_is_kept(llm)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_offloading_size": 0}, "prefill_replicas hand KV blocks over in host memory: set kv_"),
        ({"prefill_replicas": 2}, r"prefill_replicas \(2\) must be fewer than data_parallel_size"),
        ({"data_parallel_size": 1}, "raise data_parallel_size"),
        ({"runner": "pooling"}, "runner='pooling' gives none; leave one out"),
        ({"prefill_replicas": -1}, "prefill_replicas must be from 0 to"),
        ({"enable_prefix_caching": False}, "set enable_prefix_caching"),
    ],
)
def test_arguments_that_contradict_each_other_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        EngineConfig(**(APART | options))
    assert "\n" not in str(caught.value)
