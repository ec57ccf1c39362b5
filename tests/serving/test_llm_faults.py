"""The offline API when things go wrong or change: Ctrl-C, failing steps, NaN, weights, close."""

import asyncio
import gc
import logging
import signal
import threading
import traceback
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, RequestOutput
from jaxinfer.config import LogprobsMode
from jaxinfer.errors import CapacityError, ModelLoadError, StepError
from jaxinfer.model.sharding import make_mesh
from jaxinfer.serving.requests.detokenizer import Detokenizer
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.small_llm import (
    GREEDY,
    PROMPTS,
    greedy_reference,
    ids,
    reference_logits,
    reference_logprobs,
    small_llm,
    small_params,
)


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_aborts_the_call_and_leaves_a_working_engine(llm, presses, monkeypatch, request):
    expected = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    step, calls, heard = llm._loaded.engine.step, [], threading.Semaphore()
    python = signal.getsignal(signal.SIGINT)

    def hear(*arguments):
        heard.release()
        python(*arguments)

    def interrupted():
        calls.append(step)
        if 3 <= len(calls) < 3 + presses:
            # Two that come before Python looks are one.
            heard.acquire(timeout=30)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        step()

    monkeypatch.setattr(llm._loaded.engine, "step", interrupted)
    signal.signal(signal.SIGINT, hear)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, python))
    for _ in range(presses):
        # The second comes while the first call's requests are being aborted, or in the next call.
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY.clone(max_tokens=40), use_tqdm=False)
    monkeypatch.undo()
    assert not llm.has_unfinished_requests()
    assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


def test_threads_may_generate_at_once(llm):
    expected = [greedy_reference(prompt, 6) for prompt in PROMPTS]
    results = {}

    def run(i):
        results[i] = ids(llm.generate([PROMPTS[i]], GREEDY, use_tqdm=False))[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(3)] == expected


def test_a_step_that_raises_is_survived(llm, monkeypatch):
    expected = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    runner = llm._loaded.replicas[0].runner
    launch, calls = runner.launch, []

    def break_once(schedule):
        calls.append(schedule)
        step = launch(schedule)
        if len(calls) == 3:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return step

    monkeypatch.setattr(runner, "launch", break_once)
    assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
    monkeypatch.undo()
    assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


def test_the_first_cause_of_a_failed_request_is_chained(llm, monkeypatch):
    def break_always(schedule):
        raise ArithmeticError("on purpose")

    async def last() -> RequestOutput:
        return [output async for output in llm.astream(PROMPTS[0], GREEDY)][-1]

    monkeypatch.setattr(llm._loaded.replicas[0].runner, "launch", break_always)
    outputs = [*llm.generate(PROMPTS, GREEDY, use_tqdm=False), asyncio.run(last())]
    for output in outputs:
        assert output.error == "its step failed twice: on purpose"
        assert "break_always" in "".join(traceback.format_exception(output.cause))
    with pytest.raises(StepError, match="scoring failed: its step failed twice") as scored:
        llm.score([PROMPTS[0]])
    with pytest.raises(StepError, match="3 of 3 prompts failed") as rolled:
        llm.rollout(PROMPTS, GREEDY)
    for caught in (scored, rolled):
        assert "break_always" in "".join(traceback.format_exception(caught.value))
    monkeypatch.undo()
    assert llm.score([PROMPTS[0]])


def test_nan_weights_end_the_requests_and_good_weights_serve_the_next(llm, caplog):
    expected = ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, small_params())
    llm.update_params(bad)
    caplog.clear()
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"3 of 3 requests failed; the first, prompts[0]: {outputs[0].error} (")
    assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3
    assert all("not finite" in output.error for output in outputs)
    with pytest.raises(StepError, match="not finite"):
        llm.score([[1, 2, 3]])
    llm.update_params(small_params())
    assert ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


@pytest.mark.parametrize("mode", typing.get_args(LogprobsMode))
def test_constraints_that_leave_no_token_are_told_from_bad_weights(mode, tokenizer):
    (word,) = tokenizer.encode("a", add_special_tokens=False)
    limits = {"allowed_token_ids": [word], "bad_words": ["aa"]}  # no second token is left
    greedy = GREEDY.clone(logprobs=2, **limits)
    contradictions = [greedy, greedy.clone(temperature=1.0, logprobs=None)]
    with small_llm(tokenizer=tokenizer, logprobs_mode=mode) as llm:
        for output in llm.generate([[1, 2]] * 2, contradictions, use_tqdm=False):
            assert output.error.startswith("NoTokenLeft: allowed_token_ids and bad_words")
            assert output.outputs[0].token_ids == [word]
        llm.update_params(jax.tree.map(lambda leaf: leaf * jnp.nan, small_params()))
        for output in llm.generate([[1, 2]] * 2, contradictions, use_tqdm=False):
            assert "not finite" in output.error


def test_new_weights_give_their_own_answers_and_no_cached_prefix(llm):
    prompt = list(range(1, 40))
    llm.generate([prompt], GREEDY, use_tqdm=False)
    (cached,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert cached.num_cached_tokens == 32
    other = jax.tree.map(lambda leaf: leaf * 1.5, small_params())
    llm.update_params(other)
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert output.num_cached_tokens == 0
    assert output.outputs[0].token_ids[0] == int(reference_logits(prompt, other)[-1].argmax())
    llm.update_params(small_params())


def test_weights_that_do_not_fit_are_named(llm):
    wrong = jax.tree.map(lambda leaf: leaf, small_params())
    wrong["model"] = wrong["model"] | {"norm": jnp.ones(31)}
    with pytest.raises(ValueError, match=r"model\.norm"):
        llm.update_params(wrong)
    assert ids(llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False))


def test_cache_salts_do_not_share_blocks(llm):
    prompt = list(range(100, 140))
    for salt, expected in ((None, 0), (None, 32), ("a", 0), ("b", 0), ("a", 32)):
        item = {"prompt_token_ids": prompt, "cache_salt": salt}
        (output,) = llm.generate(item, GREEDY, use_tqdm=False)
        assert output.num_cached_tokens == expected


def test_defaults_come_from_the_generation_config_and_that_is_said_once(tokenizer, capsys):
    with small_llm(tokenizer=tokenizer, show_progress=True) as llm:
        assert llm.get_default_sampling_params().temperature == 0.6
        for _ in range(2):
            llm.generate([[1]], use_tqdm=False)
    said = capsys.readouterr().err
    assert said.count("Sampling defaults from") == 1
    assert "temperature=0.6" in said
    assert "KV cache: 65 blocks, 1,024 tokens" in said


def test_a_bad_generation_config_is_named(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": -3}')
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: temperature"):
        small_llm(tokenizer=tmp_path)


def test_without_a_tokenizer_only_ids_go_in_and_out():
    with small_llm() as llm:
        assert llm.tokenizer is None
        (output,) = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)
        assert output.outputs[0].text == ""
        with pytest.raises(ValueError, match="no tokenizer"):
            llm.generate("hi", GREEDY)
        with pytest.raises(ValueError, match="chat needs a tokenizer"):
            llm.chat([{"role": "user", "content": "hi"}], GREEDY)


def test_the_callers_arrays_are_used_without_a_copy():
    with small_llm() as llm:
        given = jax.tree.leaves(small_params())
        used = jax.tree.leaves(llm._loaded.replicas[0].runner.resident.params)
        pointers = [leaf.unsafe_buffer_pointer() for leaf in used]
        assert pointers == [leaf.unsafe_buffer_pointer() for leaf in given]
    assert all(not leaf.is_deleted() for leaf in given)


def test_a_mesh_is_taken_from_sharded_parameters():
    mesh = make_mesh(2)
    with small_llm(mesh=mesh) as llm:
        sharded = llm._loaded.replicas[0].runner.resident.params
        with small_llm(params=sharded) as again:
            assert again._loaded.replicas[0].runner._mesh == mesh


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"max_num_seq": 3}, TypeError, "did you mean 'max_num_seqs'"),
        ({"logit_processor": 3}, TypeError, "did you mean 'logits_processor'"),
        ({"block_size": 12}, ValueError, "block_size must be a power of two"),
        ({"model": "x"}, ValueError, "either model or params"),
        ({"config": None}, ValueError, "params and config go together"),
        ({"config": "dir"}, TypeError, "config must be a ModelConfig, got str; ModelConfig.from"),
        ({"params": None, "config": "dir"}, TypeError, "config must be a ModelConfig, got str"),
        ({"params": "dir"}, TypeError, "params must be a Mapping, got str; a directory is given"),
        ({"mesh": "x"}, TypeError, "mesh must be a Mesh, got str; jaxinfer.make_mesh"),
        ({"rules": "x"}, TypeError, "rules must be a ShardingRules, got str"),
        ({"dtype": "bfloat16"}, ValueError, "dtype is bfloat16, but params are float32"),
        ({"num_kv_blocks": 3}, CapacityError, "max_model_len to at most 32"),
        ({"mesh": make_mesh(2), "tensor_parallel_size": 4}, ValueError, "the mesh has 2 devices"),
        ({"tensor_parallel_size": 3}, ValueError, "does not divide"),
        ({"logits_processor": lambda logits, state: logits[:1]}, ValueError, "logits_processor"),
        ({"sampler": lambda logits, state, keys: logits[:, 0]}, TypeError, "sampler"),
    ],
)
def test_bad_arguments_are_named_at_construction(options, kind, text):
    with pytest.raises(kind, match=text):
        small_llm(**options)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_all_log_probabilities_are_there_where_the_engine_reports_them(name):
    with small_llm(max_logprobs=-1) as llm:
        params = GREEDY.clone(**{name: -1}, max_tokens=1)
        (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    entries = output.outputs[0].logprobs[0] if name == "logprobs" else output.prompt_logprobs[2]
    expected = reference_logprobs(PROMPTS[0])[-1 if name == "logprobs" else 1]
    found = [entries[i].logprob for i in range(len(expected))]
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(("asked", "count"), [(-1, 512), (21, 21)])
def test_more_log_probabilities_than_the_engine_reports_are_refused(llm, asked, count):
    with pytest.raises(ValueError, match=f"^logprobs asks for {count}, but max_logprobs is 20"):
        llm.generate([[1]], GREEDY.clone(logprobs=asked), use_tqdm=False)


def test_a_missing_model_is_one_line(tmp_path):
    with pytest.raises(ModelLoadError, match="no such directory") as caught:
        LLM(tmp_path / "nowhere", show_progress=False)
    assert "\n" not in str(caught.value)


def test_a_logits_processor_is_compiled_into_the_step_and_a_bad_row_ends_alone():
    def processor(logits, state):
        # Token 9 makes its own row NaN; elsewhere token 7 always wins.
        poisoned = (state.last_token_ids == 9)[:, None]
        wins = jnp.arange(logits.shape[1]) == 7
        return jnp.where(poisoned, jnp.nan, jnp.where(wins, 1e4, logits))

    with small_llm(logits_processor=processor) as llm:
        good, bad = llm.generate([[1, 2], [3, 9]], GREEDY, use_tqdm=False)
        assert good.outputs[0].token_ids == [7] * 6
        assert bad.outputs[0].finish_reason == "error"
        assert bad.outputs[0].token_ids == []
        assert llm.generate([[5]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids == [7] * 6


@pytest.mark.slow("alone")
def test_a_custom_sampler_that_leaves_the_vocabulary_is_the_cause_that_is_named(caplog):
    def sampler(logits, state, keys):
        tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jnp.where(state.positions > 4, -1, tokens)

    with small_llm(sampler=sampler) as llm:
        good, bad = llm.generate([[1], [1, 2, 3]], GREEDY.clone(max_tokens=4), use_tqdm=False)
    assert good.error is None
    assert bad.error == "the custom sampler chose a token id outside the model's vocabulary"
    assert len(bad.outputs[0].token_ids) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"1 of 2 requests failed; the first, prompts[1]: {bad.error} (")


@pytest.mark.slow("alone")
def test_a_custom_sampler_replaces_the_draw():
    def sampler(logits, state, keys):
        return ((state.positions * 3) % logits.shape[1]).astype(jnp.int32)

    with small_llm(sampler=sampler) as llm:
        (output,) = llm.generate([[1, 2]], GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == [6, 9, 12, 15, 18, 21]


def test_a_closed_llm_says_so_and_may_be_closed_again():
    llm = small_llm()
    stream = llm.stream([1], GREEDY.clone(max_tokens=50))
    next(stream)
    llm.close()
    llm.close()
    assert llm.is_closed
    assert list(stream)[-1].outputs[0].finish_reason == "abort"
    for call in (
        lambda: llm.generate([[1]]),
        lambda: llm.stream([1]),
        lambda: llm.score([[1]]),
        lambda: llm.chat([]),
        lambda: llm.add_request("a", [1]),
        lambda: llm.abort_request("a"),
        lambda: llm.update_params(small_params()),
        llm.step,
        llm.has_unfinished_requests,
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_stream_keeps_its_llm_open():
    deltas = list(small_llm().stream([1, 2], GREEDY))
    assert sum(len(d.outputs[0].token_ids) for d in deltas) == 6

    async def collect():
        return [delta async for delta in small_llm().astream([1, 2], GREEDY)]

    assert asyncio.run(collect())[-1].outputs[0].finish_reason == "length"


def test_an_llm_that_is_dropped_frees_its_cache_before_the_next_is_made():
    llm = small_llm()
    pages = llm._loaded.replicas[0].runner.resident.kv[0].k
    del llm
    gc.collect()
    with small_llm():
        assert pages.is_deleted()


def test_labels_of_requests_are_nobodys_keys(llm):
    async def main():
        streams = [llm.astream([i], GREEDY.clone(max_tokens=30), "same") for i in (1, 2)]
        first = await asyncio.gather(*[anext(stream) for stream in streams])
        llm.abort_request("same")  # of the step loop, which has none
        await streams[0].aclose()
        rest = [output async for output in streams[1]]
        return first[1], rest

    first, rest = asyncio.run(main())
    tokens = [t for output in [first, *rest] for t in output.outputs[0].token_ids]
    assert tokens == greedy_reference([2], 30)
    assert {output.request_id for output in [first, *rest]} == {"same"}


def test_after_the_first_time_nothing_compiles(llm):
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    before = llm.num_compilations
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert llm.num_compilations == before


def test_a_request_that_fails_on_the_host_is_warned_of_once_at_most(llm, monkeypatch, caplog):
    def fail(*_):
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(Detokenizer, "append", fail)
    (output,) = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert output.error == "ArithmeticError: on purpose"
    assert output.error in warnings[0]
    caplog.clear()
    *_, last = llm.stream(PROMPTS[0], GREEDY)  # as the commands do, which print the cause
    assert last.error == output.error
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
