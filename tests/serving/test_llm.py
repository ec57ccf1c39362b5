"""The offline API on a real, tiny model: vLLM's calls give what the plain forward gives."""

import asyncio
import copy
import dataclasses
import functools
import io
import json

import numpy as np
import pytest
import tqdm

from jaxinfer import RequestOutputKind, SamplingParams
from tests.serving.small_llm import GREEDY, PROMPTS, greedy_reference, ids, reference_logprobs


def test_generate_returns_outputs_in_the_order_of_the_prompts(llm):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    assert ids(outputs) == [greedy_reference(prompt, 6) for prompt in PROMPTS]
    assert all(output.finished for output in outputs)
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)
    assert len({output.request_id for output in outputs}) == 3


def test_text_goes_in_and_comes_out(llm, tokenizer):
    (output,) = llm.generate("Once upon a time", GREEDY, use_tqdm=False)
    assert output.prompt == "Once upon a time"
    assert output.prompt_token_ids == tokenizer.encode("Once upon a time")
    assert output.outputs[0].text == tokenizer.decode(output.outputs[0].token_ids)


def test_each_prompt_may_have_its_own_parameters(llm):
    lengths = [1, 5, 3]
    params = [GREEDY.clone(max_tokens=length) for length in lengths]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


def test_without_max_tokens_the_answer_fills_the_model(llm):
    (output,) = llm.generate([PROMPTS[0]], GREEDY.clone(max_tokens=None), use_tqdm=False)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == llm.max_model_len


@pytest.mark.parametrize("kind", ["logprobs", "prompt_logprobs"])
def test_logprobs_are_the_models(llm, kind):
    prompt = PROMPTS[2]
    params = GREEDY.clone(**{kind: 3}, max_tokens=3)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    tokens = prompt + output.outputs[0].token_ids
    expected = reference_logprobs(tokens)
    if kind == "logprobs":
        entries, start = output.outputs[0].logprobs, len(prompt)
    else:
        assert output.prompt_logprobs[0] is None
        entries, start = output.prompt_logprobs[1:], 1
    for position, entry in enumerate(entries, start=start):
        row = expected[position - 1]
        assert entry[tokens[position]].logprob == pytest.approx(row[tokens[position]], abs=1e-4)
        assert set(np.argsort(-row)[:3]) <= set(entry)
        assert entry[int(row.argmax())].rank == 1


@pytest.mark.parametrize("count", [None, 0, 2])
def test_an_output_as_a_dictionary_is_json(llm, count):
    params = GREEDY.clone(logprobs=count, prompt_logprobs=count)
    (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    read = json.loads(json.dumps(dataclasses.asdict(output)))
    assert read["outputs"][0]["token_ids"] == output.outputs[0].token_ids
    logprobs = output.outputs[0].logprobs
    if count == 0:
        assert read["outputs"][0]["logprobs"] == {
            "token_ids": output.outputs[0].token_ids,
            "values": logprobs.values,
            "ranks": logprobs.ranks,
        }
        assert copy.deepcopy(logprobs) == list(logprobs)


def test_seeds_make_answers_repeatable_whatever_the_batch_mates(llm):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=6, ignore_eos=True)
    alone = ids(llm.generate([PROMPTS[0]], params, use_tqdm=False))
    among = ids(llm.generate([PROMPTS[1], PROMPTS[0], PROMPTS[2]], params, use_tqdm=False))
    assert among[1] == alone[0]


def test_n_completions_equal_requests_with_consecutive_seeds(llm):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    single = [params.clone(n=1, seed=5 + i) for i in range(3)]
    expected = ids(llm.generate([PROMPTS[0]] * 3, single, use_tqdm=False))
    assert [completion.token_ids for completion in output.outputs] == expected
    assert len({tuple(tokens) for tokens in expected}) > 1


@pytest.mark.parametrize(
    ("prompts", "params", "kind", "text"),
    [
        ([[1, 2], [], [3]], GREEDY, ValueError, r"prompts\[1\] is empty"),
        ([[1], [512]], GREEDY, ValueError, r"prompts\[1\]: token id 512"),
        ([[1], [2] * 64], GREEDY, ValueError, "64; shorten it or raise max_model_len"),
        ([[1], [True]], GREEDY, TypeError, "True"),
        ([[1], [2]], [GREEDY], ValueError, "2 prompts but 1 sampling_params"),
        ([[1]], {"n": 2}, TypeError, "sampling_params"),
        ([[1]], SamplingParams(stop_token_ids=[600]), ValueError, "stop_token_ids"),
    ],
)
def test_one_bad_prompt_raises_before_anything_runs(llm, prompts, params, kind, text):
    launches = llm._loaded.replicas[0].runner.num_compilations
    with pytest.raises(kind, match=text):
        llm.generate(prompts, params, use_tqdm=False)
    assert not llm.has_unfinished_requests()
    assert llm._loaded.replicas[0].runner.num_compilations == launches


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([], GREEDY, use_tqdm=False) == []


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True, logprobs=1),
        SamplingParams(temperature=1.0, seed=4, max_tokens=12, ignore_eos=True, n=2),
    ],
)
def test_a_stream_adds_up_to_the_answer(llm, params):
    (expected,) = llm.generate("Once upon 你好", params, use_tqdm=False)
    deltas = list(llm.stream("Once upon 你好", params))
    assert len(deltas) > 1
    for i, completion in enumerate(expected.outputs):
        parts = [delta.outputs[i] for delta in deltas]
        assert "".join(part.text for part in parts) == completion.text
        assert [t for part in parts for t in part.token_ids] == completion.token_ids
        assert parts[-1].finish_reason == completion.finish_reason
        if completion.logprobs is not None:
            assert [p for part in parts for p in part.logprobs] == completion.logprobs
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_stop_strings_end_a_stream_as_they_end_an_answer(llm):
    (free,) = llm.generate("Once", GREEDY.clone(max_tokens=20), use_tqdm=False)
    text = free.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    params = GREEDY.clone(max_tokens=20, stop=[stop])
    (output,) = llm.generate("Once", params, use_tqdm=False)
    assert output.outputs[0].text == text[: text.index(stop)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    assert "".join(o.outputs[0].text for o in llm.stream("Once", params)) == output.outputs[0].text


def test_leaving_a_stream_aborts_its_request(llm):
    stream = llm.stream([1, 2], GREEDY.clone(max_tokens=50))
    next(stream)
    assert llm.has_unfinished_requests()
    stream.close()
    assert not llm.has_unfinished_requests()


def test_a_stream_that_is_never_started_costs_nothing(llm):
    llm.stream([1, 2], GREEDY)
    assert not llm.has_unfinished_requests()


def test_a_stream_checks_its_prompt_at_once(llm):
    with pytest.raises(ValueError, match="prompt is empty"):
        llm.stream([[]][0] or "", GREEDY)
    with pytest.raises(ValueError, match="expected one prompt, got 2"):
        llm.stream([[1], [2]], GREEDY)


def test_chat_uses_the_template(llm, tokenizer):
    messages = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt == tokenizer.apply_chat_template(messages)
    assert output.prompt_token_ids == tokenizer.encode(output.prompt, add_special_tokens=False)
    two = llm.chat([messages, messages], GREEDY, use_tqdm=False, enable_thinking=False)
    assert len(two) == 2
    assert two[0].prompt.endswith("<think>\n\n</think>\n\n")
    (more,) = llm.chat(
        [*messages, {"role": "assistant", "content": "Yes"}],
        GREEDY,
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert more.prompt.endswith("assistant\nYes")


def test_chat_takes_a_template_and_names_for_it(llm):
    (output,) = llm.chat(
        [{"role": "user", "content": "hi"}],
        GREEDY,
        use_tqdm=False,
        chat_template="{{ messages[0].content }} {{ mood }}",
        chat_template_kwargs={"mood": "glad"},
    )
    assert output.prompt == "hi glad"


def test_chat_takes_a_template_of_the_models_by_name(llm):
    call = functools.partial(llm.chat, [{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)
    assert call(chat_template="default")[0].prompt == call()[0].prompt
    with pytest.raises(ValueError, match="has no chat template 'rag'; it has default"):
        call(chat_template="rag")


def test_names_for_the_template_win_over_arguments_of_chat(llm):
    (output,) = llm.chat(
        [{"role": "user", "content": "hi"}],
        GREEDY,
        use_tqdm=False,
        enable_thinking=True,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert output.prompt.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("names", "kind", "text"),
    [
        ({"messages": []}, ValueError, "chat_template_kwargs can't set 'messages'"),
        ("thinking", TypeError, "chat_template_kwargs must be a dict"),
        ({1: 2}, TypeError, "chat_template_kwargs must be a dict"),
    ],
)
def test_bad_names_for_the_template_are_one_error(llm, names, kind, text):
    with pytest.raises(kind, match=text):
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, chat_template_kwargs=names)


def test_default_parameters_are_the_callers_to_change(llm):
    params = llm.get_default_sampling_params()
    params.max_tokens = 3
    params.temperature = 0.0
    (output,) = llm.generate([PROMPTS[0]], params, use_tqdm=False)
    assert output.outputs[0].token_ids == greedy_reference(PROMPTS[0], 3)
    assert llm.get_default_sampling_params().max_tokens == 16


def test_assignments_leave_requests_alone_that_were_made_before(llm):
    params = GREEDY.clone()
    llm.add_request("a", PROMPTS[0], params)
    params.logit_bias = {7: 100.0}
    while llm.has_unfinished_requests():
        outputs = llm.step()
    assert outputs[-1].outputs[0].token_ids == greedy_reference(PROMPTS[0], 6)


def test_a_progress_bar_is_shown_when_asked_for(llm, capsys):
    llm.generate([[1]], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate([[1]], GREEDY)
    assert "Processed prompts: 100%" in capsys.readouterr().err


def test_a_progress_bar_may_be_the_callers(llm, capsys):
    bars = []

    def make(**options):
        bars.append(tqdm.tqdm(**options, file=io.StringIO()))
        return bars[-1]

    llm.generate(PROMPTS, GREEDY, use_tqdm=make)
    llm.score(PROMPTS[:2], use_tqdm=make)
    assert [(bar.total, bar.n, bar.desc) for bar in bars] == [
        (3, 3, "Processed prompts"),
        (2, 2, "Processed prompts"),
    ]
    assert capsys.readouterr().err == ""


def test_chat_refuses_what_is_no_conversation(llm):
    with pytest.raises(TypeError, match="messages must be a list"):
        llm.chat("hi", GREEDY)
    with pytest.raises(TypeError, match=r"messages must be a list.*NoneType"):
        llm.chat(None, GREEDY)
    with pytest.raises(TypeError, match=r"messages\[1\] must be a list.*NoneType"):
        llm.chat([[{"role": "user", "content": "x"}], None], GREEDY)
    with pytest.raises(ValueError, match="unknown role 'alien'"):
        llm.chat([{"role": "alien", "content": "x"}], GREEDY)


def test_the_step_api_is_vllms(llm):
    for i, prompt in enumerate(PROMPTS):
        llm.add_request(str(i), prompt, GREEDY)
    with pytest.raises(ValueError, match="'0' is in use"):
        llm.add_request("0", [1], GREEDY)
    with pytest.raises(TypeError, match="request_id"):
        llm.add_request("", [1], GREEDY)
    llm.abort_request("1")
    llm.abort_request(["1", "unknown"])
    last, lengths = {}, {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            last[output.request_id] = output
            lengths.setdefault(output.request_id, []).append(len(output.outputs[0].token_ids))
    assert set(last) == {"0", "2"}
    assert last["0"].outputs[0].token_ids == greedy_reference(PROMPTS[0], 6)
    assert lengths["2"] == [1, 2, 3, 4, 5, 6]


def test_generate_does_not_swallow_outputs_of_added_requests(llm):
    llm.add_request("mine", PROMPTS[0], GREEDY)
    llm.generate([PROMPTS[1]], GREEDY.clone(max_tokens=20), use_tqdm=False)
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].request_id == "mine"
    assert outputs[-1].outputs[0].token_ids == greedy_reference(PROMPTS[0], 6)


def test_scores_are_the_models(llm, tokenizer):
    tokens = PROMPTS[2]
    table = reference_logprobs(tokens)
    expected = [table[i, token] for i, token in enumerate(tokens[1:])]
    whole, pair = llm.score([tokens])[0], llm.score([(tokens[:5], tokens[5:])])[0]
    assert whole.token_logprobs[0] is None
    assert whole.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert whole.logprob == pytest.approx(sum(expected), abs=1e-3)
    assert pair.start == 5
    assert pair.logprob == pytest.approx(sum(expected[4:]), abs=1e-3)
    (text,) = llm.score(("Once upon", " a time"))
    assert text.token_ids == tokenizer.encode("Once upon a time")
    assert text.start == len(tokenizer.encode("Once upon"))


def test_a_greedy_continuation_is_recognised_by_its_score(llm):
    continuation = greedy_reference(PROMPTS[0], 4)
    right, wrong = llm.score(
        [(PROMPTS[0], continuation), (PROMPTS[0], [(continuation[0] + 1) % 512])]
    )
    assert right.is_greedy
    assert not wrong.is_greedy


def test_a_text_as_long_as_the_model_can_be_scored(llm):
    assert len(llm.score([[1] * 64])[0].token_logprobs) == 64
    with pytest.raises(ValueError, match="65 tokens, but max_model_len is 64"):
        llm.score([[1] * 65])


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        (([], [1]), ValueError, "context is empty"),
        (([1], []), ValueError, "continuation is empty"),
        (("a", [1]), TypeError, "both be text or both token ids"),
        ([([1], [2]), [3]], TypeError, r"inputs\[1\] must be a tuple"),
        ([([1], [2]), ([1], [600])], ValueError, r"inputs\[1\]: token id 600"),
    ],
)
def test_bad_score_inputs_are_named(llm, inputs, kind, text):
    with pytest.raises(kind, match=text):
        llm.score(inputs)


def test_async_streams_of_one_loop_add_up_to_the_answers(llm):
    async def collect(prompt, params):
        return [delta async for delta in llm.astream(prompt, params)]

    async def main():
        return await asyncio.gather(*(collect(prompt, GREEDY) for prompt in PROMPTS))

    for prompt, deltas in zip(PROMPTS, asyncio.run(main()), strict=True):
        tokens = [t for delta in deltas for t in delta.outputs[0].token_ids]
        assert tokens == greedy_reference(prompt, 6)
    with pytest.raises(ValueError, match="prompt is empty"):
        llm.astream("", GREEDY)


def test_resetting_the_prefix_cache_ends_hits_and_leaves_running_requests_alone(llm):
    prompt = [*range(100, 140)]
    llm.add_request("running", prompt, GREEDY)
    llm.step()
    assert llm.reset_prefix_cache() is True
    answers = [llm.generate([prompt], GREEDY, use_tqdm=False)[0] for _ in range(2)]
    assert [answer.num_cached_tokens for answer in answers] == [0, 32]
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert ids([outputs[-1], *answers]) == [greedy_reference(prompt, 6)] * 3
    llm.reset_prefix_cache()
    assert llm._loaded.replicas[0].scheduler.pool.num_cached_blocks == 0


def test_requests_by_hand_give_what_their_output_kind_says(llm):
    expected = greedy_reference(PROMPTS[0], 6)
    for kind in RequestOutputKind:
        llm.add_request(kind.name, PROMPTS[0], GREEDY.clone(output_kind=kind))
    tokens = {kind.name: [] for kind in RequestOutputKind}
    while llm.has_unfinished_requests():
        for output in llm.step():
            tokens[output.request_id].append(output.outputs[0].token_ids)
    assert tokens["CUMULATIVE"][-1] == expected
    assert len(tokens["CUMULATIVE"]) > 1
    assert [token for piece in tokens["DELTA"] for token in piece] == expected
    assert tokens["FINAL_ONLY"] == [expected]
