"""Requests that edit logits, need their history or report more share steps with any others."""

import numpy as np
import pytest

from jaxinfer import SamplingParams
from jaxinfer.serving.runner.runner import Runner
from tests.serving.sampling.sampling_reference import processed_logits
from tests.serving.small_llm import GREEDY, PROMPTS, held_blocks, reference_logits, small_llm

COUNT = 12
PENALISED = GREEDY.clone(
    max_tokens=COUNT, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7
)
EDITED = GREEDY.clone(
    max_tokens=COUNT, logit_bias={7: 3.0, 9: -2.0}, allowed_token_ids=range(0, 200)
)
# Of a vocabulary as small as the stop tokens that it may have, one is written soon.
STOPS = [*range(64)]
HELD_UP = GREEDY.clone(
    max_tokens=COUNT, min_tokens=5, stop_token_ids=STOPS, logit_bias=dict.fromkeys(STOPS, 1.5)
)


def reference(prompt, params, count=COUNT):
    """Greedy tokens of a plain loop: all is made anew from the tokens so far."""
    output = []
    for i in range(count):
        logits = reference_logits([*prompt, *output])[-1]
        stops = params.stop_token_ids or [] if i < params.min_tokens else []
        output.append(int(processed_logits(logits, params, prompt, output, stops).argmax()))
        if output[-1] in (params.stop_token_ids or []):
            break
    return output


def tokens(outputs):
    return [output.outputs[0].token_ids for output in outputs]


PARAMS = [PENALISED, EDITED, HELD_UP, GREEDY.clone(max_tokens=COUNT, logprobs=3)]
REQUESTS = [(PROMPTS[i % 3], PARAMS[(i + i // 3) % 4]) for i in range(8)]


@pytest.fixture(scope="module")
def expected():
    return [reference(prompt, params) for prompt, params in REQUESTS]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_left": 4},  # blocks, of which they want more, so that some are preempted
        {"num_left": 4, "preemption_mode": "swap", "swap_space": 0.01},
        pytest.param({"max_num_batched_tokens": 5}, marks=pytest.mark.slow("alone")),
        {"tensor_parallel_size": 2},
    ],
    ids=str,
)
def test_mixed_batches_give_the_tokens_of_a_plain_loop(expected, options):
    prompts, params = zip(*REQUESTS, strict=True)
    engine = {name: value for name, value in options.items() if name != "num_left"}
    with small_llm(**engine) as llm, held_blocks(llm, options.get("num_left", 64)):
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
        if "num_left" in options:
            assert any(output.metrics.num_preemptions for output in outputs)
    assert tokens(outputs) == expected
    for output, (prompt, params) in zip(outputs, REQUESTS, strict=True):
        if params.logprobs:
            logits = reference_logits([*prompt, *output.outputs[0].token_ids]).astype(np.float64)
            for i, entry in enumerate(output.outputs[0].logprobs):
                row = logits[len(prompt) - 1 + i]
                token = output.outputs[0].token_ids[i]
                own = row[token] - np.log(np.exp(row - row.max()).sum()) - row.max()
                assert entry[token].logprob == pytest.approx(own, abs=1e-3)


def test_a_slots_next_holder_hears_nothing_of_the_last_one(llm, monkeypatch):
    plain = GREEDY.clone(max_tokens=COUNT, logprobs=1)
    slots = set()
    launch = Runner.launch

    def noted(self, schedule):
        slots.update(row.request.slot for row in schedule.rows)
        return launch(self, schedule)

    monkeypatch.setattr(Runner, "launch", noted)
    for prompt, params in [*REQUESTS[:4], (PROMPTS[0], plain), (PROMPTS[1], PENALISED)]:
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert output.outputs[0].token_ids == reference(prompt, params)
    assert len(slots) == 1


def test_bad_words_of_several_tokens_follow_tokens_that_were_in_flight(llm, tokenizer):
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=3, ignore_eos=True)
    free = llm.generate(PROMPTS, params, use_tqdm=False)
    # Pairs of neighbours in what is written freely: words that no request may write again.
    pairs = [output.outputs[0].token_ids[i : i + 2] for output in free for i in range(30)]
    texts = [(tokenizer.decode(pair), pair) for pair in pairs]
    banned = [text for text, pair in texts if tokenizer.encode(text) == pair and text.isprintable()]
    assert len(banned) > 3
    strict = params.clone(bad_words=banned[:8])
    outputs = llm.generate(PROMPTS, strict, use_tqdm=False)
    for output in outputs:
        written = output.outputs[0].token_ids
        runs = {tuple(written[i : i + 2]) for i in range(len(written))}
        assert runs.isdisjoint(tuple(tokenizer.encode(word)) for word in banned[:8])
    assert tokens(outputs) != tokens(free)
    alone = [llm.generate([prompt], strict, use_tqdm=False)[0] for prompt in PROMPTS]
    assert tokens(alone) == tokens(outputs)
