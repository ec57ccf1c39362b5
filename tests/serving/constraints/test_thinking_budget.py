"""A thinking budget: the tokens decide which one comes next; other requests are not affected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.text.thinking_tokens import ThinkingTokens
from jaxinfer.serving.constraints.thinking_budget import ThinkingBudget

OPEN, CLOSE, BREAK, CALL = 50, 51, 10, 60
TOKENS = ThinkingTokens(OPEN, CLOSE, (BREAK, CLOSE, BREAK), CALL, is_blank=BREAK.__eq__)


def forced(budget, output, stage="possible", **options):
    return ThinkingBudget(budget, TOKENS, stage, **options).after(output).edits.required


@pytest.mark.parametrize(
    ("budget", "output", "token"),
    [
        (2, [], None),
        (2, [OPEN, 1], None),
        (2, [OPEN, 1, 2], BREAK),
        (2, [OPEN, 1, 2, BREAK], CLOSE),
        (2, [OPEN, 1, 2, BREAK, CLOSE], BREAK),
        (2, [OPEN, 1, 2, BREAK, CLOSE, BREAK], None),
        (2, [OPEN, 1, CLOSE], None),
        (2, [OPEN, 1, CLOSE, 5, 6, 7], None),
        (0, [OPEN], BREAK),
        (2, [BREAK, OPEN, 1, 2], BREAK),
        (2, [1, 2, 3, 4, OPEN, 1, 2], None),
        (2, [1, 2, 3], None),
    ],
)
def test_thinking_ends_when_its_budget_is_spent(budget, output, token):
    assert forced(budget, output) == token


def test_a_prompt_may_have_begun_it():
    assert forced(2, [1, 2], "open") == BREAK
    assert forced(0, [], "open") == BREAK
    assert forced(2, [CLOSE, 1, 2], "open") is None


def test_a_prompt_may_have_closed_it():
    assert forced(0, [OPEN, 1, 2], "over") is None


def test_a_call_ends_it_where_calls_are_read():
    assert forced(2, [OPEN, 1, CALL, 2], calls=True) is None
    assert forced(2, [OPEN, 1, CALL]) == BREAK


@given(st.lists(st.sampled_from([1, 2, OPEN, CLOSE, BREAK]), max_size=12), st.integers(0, 6))
def test_what_was_asked_before_changes_nothing(output, budget):
    asked = ThinkingBudget(budget, TOKENS, "possible")
    answers = [asked.after(output[:n]).edits.required for n in range(len(output) + 1)]
    assert answers == [forced(budget, output[:n]) for n in range(len(output) + 1)]


QUESTIONS = ["hello", "What is 12 + 30?", "Tell me a story about a cat.", "How are you?"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def llm():
    options = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    with LLM(**options, num_kv_blocks=257, show_progress=False) as llm:
        yield llm


def ask(llm, questions, params):
    conversations = [[{"role": "user", "content": question}] for question in questions]
    return [output.outputs[0] for output in llm.chat(conversations, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def free(llm):
    return ask(llm, QUESTIONS, GREEDY)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_model_is_cut_short_and_answers(llm, free, temperature):
    params = GREEDY.clone(temperature=temperature, seed=3, thinking_token_budget=3)
    for short, long in zip(ask(llm, QUESTIONS, params), free, strict=True):
        thought, answer = short.text.split("</think>")
        assert thought.startswith("<think>\n")
        assert len(llm.get_tokenizer().encode(thought)) == 1 + 3 + 1  # the tag, the budget, a break
        assert answer.startswith("\n\n")
        assert short.text != long.text


def test_a_budget_that_is_not_spent_changes_nothing(llm, free):
    answers = ask(llm, QUESTIONS, GREEDY.clone(thinking_token_budget=39))
    assert [a.token_ids for a in answers] == [a.token_ids for a in free]


@pytest.mark.parametrize("shift", range(4))
def test_neighbours_never_see_it(llm, free, shift):
    """Each order of rows, with budgets in some of them, gives each row its own answer."""
    order = [(i + shift) % 4 for i in range(4)]
    budgets = [None, 2, None, 5]
    params = [GREEDY.clone(thinking_token_budget=budgets[i]) for i in order]
    answers = ask(llm, [QUESTIONS[i] for i in order], params)
    for i, answer in zip(order, answers, strict=True):
        if budgets[i] is None:
            assert answer.token_ids == free[i].token_ids
        else:
            (alone,) = ask(llm, [QUESTIONS[i]], GREEDY.clone(thinking_token_budget=budgets[i]))
            assert answer.token_ids == alone.token_ids
            assert answer.token_ids != free[i].token_ids


def test_preemption_keeps_the_count(llm):
    params = GREEDY.clone(thinking_token_budget=4, ignore_eos=True, max_tokens=12)
    expected = [answer.token_ids for answer in ask(llm, QUESTIONS, params)]
    scheduler = llm._handle.loaded.replicas[0].scheduler
    plan, steps = scheduler.schedule, []

    def preempting(*args, **options):
        steps.append(1)
        if len(steps) % 3 == 0:
            scheduler.preempt(2)
        return plan(*args, **options)

    scheduler.schedule = preempting
    try:
        before = scheduler.num_preemptions
        answers = [answer.token_ids for answer in ask(llm, QUESTIONS, params)]
        assert scheduler.num_preemptions > before
    finally:
        scheduler.schedule = plan
    assert answers == expected
