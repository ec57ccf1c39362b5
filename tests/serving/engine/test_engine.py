"""The loop on a toy device: every request gets its tokens, whatever happens to its neighbours."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import StepError
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.engine.engine import Engine
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.multi_step import MultiStep
from jaxinfer.serving.scheduler.pacing import Pacing
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.testing.fake_runner import FakeRunner, continuation, next_token
from tests.model.text.small_tokenizer import build_backend
from tests.serving.constraints.fake_constraint import FakeSource
from tests.serving.engine.running import run_engine

VOCAB = 97
EOS = 11
TOKENIZER = Tokenizer(build_backend())


def new_request(token_ids, params, **options):
    return NewRequest(prompt=Prompt(list(token_ids)), params=params, **options)


class Setup:
    """An engine on a toy device, with everything within reach."""

    def __init__(
        self, *, num_blocks=64, block_size=8, tokenizer=None, token_map=None, ahead=1, **options
    ):
        own = [name for name in ("seed", "constraints") if name in options]
        engine_options = {"constraints": FakeSource()} | {name: options.pop(name) for name in own}
        arrival_tokens = options.pop("arrival_tokens", None)
        multi_step = MultiStep(options.pop("num_decode_steps", 1), most_rows=8)
        vocab_size = VOCAB if tokenizer is None else tokenizer.vocab_size
        self.runner = FakeRunner(vocab_size=vocab_size, block_size=block_size, token_map=token_map)
        self.runner.most_unread = ahead
        defaults = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128}
        self.scheduler = Scheduler(
            BlockPool(num_blocks, block_size),
            multi_step=multi_step,
            **(defaults | {"eos_token_ids": [EOS]} | options),
        )
        self.engine = Engine(
            self.runner,
            self.scheduler,
            tokenizer,
            pacing=Pacing(arrival_tokens, runs_apart=ahead > 1),
            **engine_options,
        )

    def add(self, name, token_ids, kind="final", text=None, cache_salt=None, **params):
        defaults = {"temperature": 0.0, "max_tokens": 5, "ignore_eos": True}
        prompt = Prompt(list(token_ids), text, cache_salt)
        params = SamplingParams(**(defaults | params))
        self.engine.add(NewRequest(prompt=prompt, params=params, key=name, kind=kind))

    def run(self):
        """Step until nothing is left; outputs in order."""
        outputs = run_engine(self.engine)
        self.scheduler.check_invariants()
        assert not self.engine._requests.table.members
        assert all(request.is_finished for request in self.engine._host_dependent.requests)
        return outputs

    def answers(self):
        return {output.request_id: output.outputs[0].token_ids for output in self.run()}


def test_a_request_gets_the_models_tokens():
    setup = Setup()
    setup.add("a", [1, 2, 3])
    (output,) = setup.run()
    assert output.outputs[0].token_ids == continuation([1, 2, 3], 5, VOCAB)
    assert output.outputs[0].finish_reason == "length"
    assert output.finished
    assert output.prompt_token_ids == [1, 2, 3]


def test_tokens_are_read_one_step_late():
    setup = Setup()
    setup.add("a", [1, 2, 3])
    setup.engine.step()
    assert setup.runner.unread == 1
    setup.engine.step()
    assert setup.runner.num_launches == 2
    assert setup.runner.unread == 1


def test_decode_steps_of_a_caller_without_arrivals_run_two_ahead():
    """Beside a device of its own; what ends a request's tokens ends the steps, too."""
    setup = Setup(ahead=2)
    setup.add("a", [1, 2, 3], max_tokens=6)
    unread = []
    while setup.engine.has_unfinished:
        setup.engine.step()
        setup.engine.take_outputs()
        unread.append(setup.runner.unread)
    assert unread == [1, 2, 2, 2, 2, 2, 1, 0]
    assert setup.runner.num_launches == 6


def test_a_prompt_and_constrained_rows_are_read_at_once_by_engines_that_run_ahead():
    setup = Setup(ahead=2)
    setup.add("a", [1, 2, 3], max_tokens=9)
    for _ in range(3):
        setup.engine.step()
    assert setup.runner.unread == 2
    setup.add("b", [5] * 9, max_tokens=2)
    setup.engine.step()
    assert setup.runner.unread == 1
    setup.run()


@pytest.mark.parametrize("runs_apart", [False, True])
def test_steps_run_ahead_only_on_a_device_of_its_own_and_without_arrivals(runs_apart):
    assert Pacing(None, runs_apart=runs_apart).most_ahead == 1 + runs_apart
    assert Pacing(64, runs_apart=runs_apart).most_ahead == 1


def test_blocks_are_hashed_while_the_device_runs_the_step_that_fills_them():
    setup = Setup()
    prompt = [*range(20)]
    num_cached = []

    def ask():
        later = new_request([*prompt, 1], SamplingParams())
        num_cached.append(setup.engine.num_cached_tokens(later))

    launch = setup.runner.launch
    setup.runner.launch = lambda schedule: (ask(), launch(schedule))[1]
    setup.add("a", prompt)
    setup.engine.step()
    ask()
    assert num_cached == [0, 16]


def _unread_at_launches(setup):
    unread, launch = [], setup.runner.launch
    setup.runner.launch = lambda schedule: (unread.append(setup.runner.unread), launch(schedule))[1]
    return unread


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 1.0},
        {"logprobs": 5},
        {"logit_bias": {3: 1.0}},
        {"allowed_token_ids": [3]},
        {"bad_words": ["x"]},
        {"min_tokens": 3},
    ],
    ids=str,
)
def test_no_way_of_sampling_makes_a_launch_wait_for_the_step_before(params):
    setup = Setup()
    setup.add("a", [1, 2, 3], max_tokens=9, **params)
    setup.add("b", [4, 5], max_tokens=9)
    unread = _unread_at_launches(setup)
    setup.run()
    assert unread == [0, *[1] * 8]
    assert setup.runner.constrained_samples == (9 if "bad_words" in params else 0)


@pytest.mark.parametrize("fails", ["fail_launches", "fail_samples", "fail_fetches"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_step_with_a_host_dependent_row_that_raises_costs_nothing_but_time(fails, number):
    setup = Setup()
    setup.add("a", [1, 2, 3], bad_words=["x"])
    setup.add("b", [4, 5])
    getattr(setup.runner, fails).add(number)
    outputs = {output.request_id: output.outputs[0] for output in setup.run()}
    assert outputs["a"].token_ids == continuation([1, 2, 3], 5, VOCAB)
    assert outputs["b"].token_ids == continuation([4, 5], 5, VOCAB)
    assert setup.runner.num_resets == 1


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([8, 16]),
    st.sampled_from([17, 20, 64]),
    st.sampled_from([8, 32]),
    st.sampled_from([1, 4]),
    st.sampled_from(["recompute", "swap"]),
    st.sampled_from([1, 2]),
)
def test_batches_chunks_multi_step_decodes_and_preemption_never_change_tokens(
    seed, block_size, num_blocks, budget, multi_step, preemption_mode, ahead
):
    rng = random.Random(seed)
    setup = Setup(
        ahead=ahead,
        num_blocks=max(num_blocks, 128 // block_size + 1),
        block_size=block_size,
        max_num_batched_tokens=budget,
        num_decode_steps=multi_step,
        preemption_mode=preemption_mode,
        num_host_blocks=8 if preemption_mode == "swap" else 0,
    )
    expected = {}
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    for i in range(10):
        prompt = shared[: rng.randrange(40)] + [rng.randrange(VOCAB) for _ in range(1 + i)]
        count = rng.randrange(1, 30)
        setup.add(str(i), prompt, max_tokens=count)
        expected[str(i)] = continuation(prompt, count, VOCAB)

    def interfere():
        if rng.random() < 0.1:
            setup.scheduler.preempt(rng.randrange(3))

    outputs = run_engine(setup.engine, after_step=interfere)
    assert {o.request_id: o.outputs[0].token_ids for o in outputs} == expected


@pytest.mark.parametrize("multi_step", [1, 4])
def test_eos_ends_a_request_and_the_tokens_behind_it_are_dropped(multi_step):
    setup = Setup(
        num_decode_steps=multi_step, token_map=lambda context: EOS if len(context) == 5 else 3
    )
    setup.add("a", [1, 2, 3], max_tokens=50, ignore_eos=False)
    (output,) = setup.run()
    assert output.outputs[0].token_ids == [3, 3, EOS]
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].stop_reason is None


def test_a_stop_token_is_named():
    setup = Setup(token_map=lambda context: 50 + len(context))
    setup.add("a", [1, 2, 3], max_tokens=50, stop_token_ids=[55])
    (output,) = setup.run()
    assert output.outputs[0].token_ids == [53, 54, 55]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", 55)


def spelled(text, *, prompt_length):
    """A toy model that spells out a text and then goes on with dots."""
    ids = [TOKENIZER.encode(char)[0] for char in text]
    dot = TOKENIZER.encode(".")[0]

    def choose(context):
        i = len(context) - prompt_length
        return ids[i] if i < len(ids) else dot

    return choose


@pytest.mark.parametrize("kind", ["final", "cumulative", "delta"])
@pytest.mark.parametrize("multi_step", [1, 4])
def test_a_stop_string_ends_the_request_and_its_tokens(kind, multi_step):
    setup = Setup(
        tokenizer=TOKENIZER,
        token_map=spelled("hello world", prompt_length=2),
        num_decode_steps=multi_step,
    )
    setup.add("a", [1, 2], kind, max_tokens=60, stop=["o w"])
    outputs = setup.run()
    last = outputs[-1].outputs[0]
    assert (last.finish_reason, last.stop_reason) == ("stop", "o w")
    if kind == "delta":
        assert "".join(o.outputs[0].text for o in outputs) == "hell"
        assert sum(len(o.outputs[0].token_ids) for o in outputs) == len("hello w")
    else:
        assert last.text == "hell"
        assert len(last.token_ids) == len("hello w")
    assert setup.scheduler.num_running == 0


def test_deltas_add_up_to_the_final_answer():
    text = "naïve 你好 🙂 text"
    ids = TOKENIZER.encode(text)
    setup = Setup(tokenizer=TOKENIZER, token_map=lambda c: ids[len(c) - 2])
    for kind in ("final", "cumulative", "delta"):
        setup.add(kind, [1, 2], kind, max_tokens=len(ids), logprobs=1)
    outputs = setup.run()
    final = next(o for o in outputs if o.request_id == "final").outputs[0]
    assert final.text == text
    deltas = [o.outputs[0] for o in outputs if o.request_id == "delta"]
    assert "".join(delta.text for delta in deltas) == text
    assert [t for delta in deltas for t in delta.token_ids] == final.token_ids
    assert [p for delta in deltas for p in delta.logprobs] == final.logprobs
    assert deltas[-1].cumulative_logprob == final.cumulative_logprob
    cumulative = [o.outputs[0] for o in outputs if o.request_id == "cumulative"]
    assert len(cumulative) == len(ids)
    assert all(b.text.startswith(a.text) for a, b in itertools.pairwise(cumulative))
    assert cumulative[-1].text == text


def test_logprobs_hold_the_chosen_token_and_the_likeliest():
    setup = Setup(tokenizer=TOKENIZER, token_map=lambda context: 42)
    setup.add("a", [1, 2], max_tokens=2, logprobs=2)
    setup.add("b", [1, 2], max_tokens=2)
    outputs = {o.request_id: o.outputs[0] for o in setup.run()}
    entries = outputs["a"].logprobs[0]
    assert list(entries) == [42, 0, 1]
    assert entries[42].logprob == pytest.approx(-0.42)
    assert entries[42].rank == 43
    assert entries[42].decoded_token == TOKENIZER.decode([42])
    assert (entries[1].logprob, entries[1].rank) == (pytest.approx(-0.01), 2)
    assert outputs["a"].cumulative_logprob == pytest.approx(-0.84)
    assert outputs["b"].logprobs is None
    assert outputs["b"].cumulative_logprob is None


@pytest.mark.parametrize("budget", [8, 64])
def test_prompt_logprobs_cover_every_prompt_token_but_the_first(budget):
    setup = Setup(max_num_batched_tokens=budget)
    prompt = list(range(30))
    setup.add("before", prompt)
    setup.add("a", prompt, prompt_logprobs=1)
    outputs = {o.request_id: o for o in setup.run()}
    entries = outputs["a"].prompt_logprobs
    assert entries[0] is None
    for token_id, entry in zip(prompt[1:], entries[1:], strict=True):
        assert entry[token_id].logprob == pytest.approx(-token_id / 100)
        assert 0 in entry
    assert outputs["before"].prompt_logprobs is None


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize("n", [1, 3])
def test_forced_tokens_are_scored_and_gone_on_from(budget, n):
    setup = Setup(max_num_batched_tokens=budget)
    prompt, forced = list(range(20)), list(range(40, 60))
    setup.add("other", prompt)
    params = {"forced_token_ids": forced, "prompt_logprobs": 0, "prompt_logprob_start": 15}
    setup.add("a", prompt, n=n, logprobs=0, max_tokens=24, **params)
    outputs = {output.request_id: output for output in setup.run()}
    for completion in outputs["a"].outputs:
        assert completion.token_ids == forced + continuation(prompt + forced, 4, VOCAB)
        expected = [-token_id / 100 for token_id in completion.token_ids]
        assert completion.logprobs.values == pytest.approx(expected)
    scored = [entry and list(entry) for entry in outputs["a"].prompt_logprobs]
    assert scored == [None] * 15 + [[token] for token in range(15, 20)]


@pytest.mark.parametrize("budget", [8, 32, 128])
@pytest.mark.parametrize("n", [2, 5])
def test_samples_of_a_prompt_leave_its_scores_alone(budget, n):
    setup = Setup(max_num_batched_tokens=budget)
    prompt = list(range(3, 30))
    setup.add("a", prompt, n=n, prompt_logprobs=0, temperature=1.0)
    setup.add("b", [1, 2, 3], prompt_logprobs=0)
    outputs = {output.request_id: output for output in setup.run()}
    scored = outputs["a"].prompt_logprobs
    assert scored[0] is None
    assert [list(entry) for entry in scored[1:]] == [[token] for token in prompt[1:]]
    assert [list(entry) for entry in outputs["b"].prompt_logprobs[1:]] == [[2], [3]]


def test_n_completions_share_the_prompt_and_differ_in_seed():
    setup = Setup()
    prompt = list(range(40))
    setup.add("a", prompt, n=3, seed=10, temperature=1.0)
    setup.engine.step()
    requests = [
        member.completion.request for member in setup.engine._requests.table.members.values()
    ]
    assert [request.seed for request in requests] == [10, 11, 12]
    (output,) = setup.run()
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert all(len(completion.token_ids) == 5 for completion in output.outputs)
    assert output.metrics.num_generated_tokens == 15
    prefilled = sum(
        row.num_fed
        for schedule in setup.runner.launches
        for row in schedule.rows
        if row.start < len(prompt)
    )
    assert prefilled == 40


def test_the_largest_seed_wraps_around():
    setup = Setup()
    setup.add("a", [1], n=2, seed=2**63 - 1)
    requests = [
        member.completion.request for member in setup.engine._requests.table.members.values()
    ]
    assert [request.seed for request in requests] == [2**63 - 1, -(2**63)]


def test_requests_without_a_seed_get_one_from_the_engines():
    def seeds(engine_seed):
        setup = Setup(seed=engine_seed)
        setup.add("a", [1])
        setup.add("b", [1])
        return [
            member.completion.request.seed
            for member in setup.engine._requests.table.members.values()
        ]

    assert seeds(0) == seeds(0)
    assert seeds(0) != seeds(1)
    assert len(set(seeds(0))) == 2


def test_num_cached_tokens_is_reported_and_salts_do_not_share():
    setup = Setup()
    prompt = list(range(20))
    for name, salt in (("a", None), ("b", None), ("c", "salt"), ("d", "salt")):
        setup.add(name, prompt, cache_salt=salt)
        (output,) = setup.run()
        assert output.num_cached_tokens == (16 if name in "bd" else 0)


def test_an_id_in_use_is_refused():
    setup = Setup()
    setup.add("a", [1])
    with pytest.raises(ValueError, match="'a' is in use"):
        setup.add("a", [2])


@pytest.mark.parametrize("steps_before", [0, 1, 2, 5])
def test_an_aborted_request_is_gone_and_its_neighbour_goes_on(steps_before):
    setup = Setup()
    setup.add("a", [1, 2, 3], max_tokens=20)
    setup.add("b", [4, 5, 6], max_tokens=20)
    for _ in range(steps_before):
        setup.engine.step()
    assert setup.engine.abort("a")
    assert not setup.engine.abort("a")
    assert setup.answers() == {"b": continuation([4, 5, 6], 20, VOCAB)}


def test_an_abort_tells_the_requests_own_listener():
    setup = Setup()
    heard = []
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    setup.engine.add(new_request([1], params, key="a", kind="final", sink=heard.append))
    for _ in range(3):
        setup.engine.step()
    setup.engine.abort("a")
    assert heard[0].outputs[0].finish_reason == "abort"
    assert heard[0].outputs[0].token_ids == continuation([1], 2, VOCAB)
    assert setup.engine.take_outputs() == []


@pytest.mark.parametrize("where", ["fail_launches", "fail_fetches"])
@pytest.mark.parametrize("number", [0, 1, 3, 6])
def test_a_step_that_raises_once_costs_nothing_but_time(where, number):
    setup = Setup(max_num_batched_tokens=16)
    getattr(setup.runner, where).add(number)
    prompts = {"a": [1, 2, 3], "b": list(range(30)), "c": [9]}
    for name, prompt in prompts.items():
        setup.add(name, prompt, max_tokens=10)
    expected = {name: continuation(prompt, 10, VOCAB) for name, prompt in prompts.items()}
    assert setup.answers() == expected
    assert setup.runner.num_resets == 1


@pytest.mark.parametrize("apart", [1, 2, 3, 9, 87])
def test_steps_that_raise_now_and_then_end_no_request(apart):
    setup = Setup(max_num_batched_tokens=8, max_model_len=256, num_blocks=128)
    setup.runner.fail_launches = {2, 2 + apart, 2 + 2 * apart}
    prompts = {"a": [1, 2, 3], "b": list(range(20)), "c": [5, 6]}
    for name, prompt in prompts.items():
        setup.add(name, prompt, max_tokens=200)
    expected = {name: continuation(prompt, 200, VOCAB) for name, prompt in prompts.items()}
    assert setup.answers() == expected


def test_a_launch_and_a_fetch_that_raise_together_are_one_incident():
    setup = Setup()
    setup.runner.fail_fetches = {3}
    setup.runner.fail_launches = {4, 5}
    setup.add("a", [1, 2, 3], max_tokens=20)
    (output,) = setup.run()
    # The fault of fetch 3 shows up at launch 4, and launch 5 is the first of its own.
    assert output.error is None or "failed twice" in output.error
    assert setup.runner.num_resets == 2


def test_when_the_cache_can_not_be_rebuilt_everything_fails_and_says_so():
    setup = Setup()
    setup.runner.fail_launches = {2}
    setup.runner.fail_reset = True
    setup.add("a", [1, 2, 3])
    with pytest.raises(StepError, match="could not be rebuilt") as caught:
        setup.run()
    first = caught.value.__cause__
    assert first is not None
    assert str(first) in str(caught.value)
    (output,) = setup.engine.take_outputs()
    assert output.outputs[0].finish_reason == "error"
    assert output.cause is first
    with pytest.raises(StepError, match="make a new LLM") as caught:
        setup.engine.step()
    assert caught.value.__cause__ is setup.engine.failure
    assert setup.engine.failure.__cause__ is first
    with pytest.raises(StepError, match="make a new LLM"):
        setup.add("b", [1])


def test_a_row_that_is_not_finite_ends_and_its_neighbour_does_not_notice():
    setup = Setup()
    setup.add("a", [1, 2, 3], max_tokens=10)
    setup.add("b", [4, 5, 6], max_tokens=10)
    for _ in range(4):
        setup.engine.step()
    setup.runner.poisoned = {"a/0"}
    outputs = {o.request_id: o for o in setup.run()}
    assert outputs["a"].outputs[0].finish_reason == "error"
    assert "not finite" in outputs["a"].error
    assert outputs["a"].outputs[0].token_ids == continuation([1, 2, 3], 4, VOCAB)
    assert outputs["b"].outputs[0].token_ids == continuation([4, 5, 6], 10, VOCAB)
    assert outputs["b"].error is None


def test_one_of_n_completions_may_fail_alone():
    setup = Setup()
    setup.runner.poisoned = {"a/1"}
    setup.add("a", [1, 2], n=2)
    (output,) = setup.run()
    assert [c.finish_reason for c in output.outputs] == ["length", "error"]
    assert output.error is not None


def test_prefill_only_requests_end_with_their_prompt():
    setup = Setup()
    params = SamplingParams(prompt_logprobs=0)
    setup.engine.add(new_request([1, 2, 3], params, prefill_only=True, kind="final"))
    (output,) = setup.run()
    assert output.outputs[0].token_ids == []
    assert list(output.prompt_logprobs[2]) == [3]


def test_new_weights_come_between_steps_and_empty_the_prefix_cache():
    setup = Setup()
    setup.add("a", list(range(20)))
    setup.run()
    with pytest.raises(ValueError, match="must be a dict"):
        setup.engine.update_params(None)
    setup.add("b", list(range(20)))
    assert setup.run()[0].num_cached_tokens == 16
    setup.add("c", list(range(20)), max_tokens=20)
    setup.engine.step()
    setup.engine.update_params({"w": 1})
    assert setup.runner.unread == 0
    setup.run()
    setup.add("d", list(range(20)))
    assert setup.run()[0].num_cached_tokens == 0


def test_metrics_tell_when_things_happened():
    ticks = iter(range(1000))
    setup = Setup()
    setup.engine = Engine(setup.runner, setup.scheduler, clock=lambda: float(next(ticks)))
    setup.add("a", [1, 2, 3])
    (output,) = setup.run()
    metrics = output.metrics
    assert metrics.num_generated_tokens == 5
    assert metrics.arrival_time < metrics.first_token_time < metrics.last_token_time
    assert metrics.finished_time >= metrics.last_token_time
    assert metrics.ttft > 0
    assert metrics.tpot > 0


def test_an_interrupt_inside_a_step_leaves_an_engine_that_says_so(monkeypatch):
    setup = Setup()
    setup.add("a", [1])

    def interrupt(schedule):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup.runner, "launch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        setup.engine.step()
    with pytest.raises(StepError, match="interrupted in the middle of a step"):
        setup.engine.step()


def test_closing_aborts_what_runs_and_frees_the_device():
    setup = Setup()
    setup.add("a", [1])
    setup.engine.step()
    setup.engine.close()
    assert setup.runner.closed
    assert not setup.engine.has_unfinished
    setup.scheduler.check_invariants()
    setup.engine.close()


def test_the_toy_model_depends_on_the_order_of_its_context():
    assert next_token([1, 2], 1000) != next_token([2, 1], 1000)


def test_a_new_request_is_checked_once(monkeypatch):
    setup, checked = Setup(), []
    check = setup.scheduler.check
    monkeypatch.setattr(setup.scheduler, "check", lambda r: (checked.append(r), check(r)))
    setup.add("a", [1, 2, 3])
    assert [request.request_id for request in checked] == ["a/0"]
    setup.run()
