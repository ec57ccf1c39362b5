"""Hundreds of random requests, aborts and failing steps: every answer is the one it has alone."""

import random

import pytest

from jaxinfer.testing.fake_runner import next_token
from tests.serving.engine.test_engine import EOS, VOCAB, Setup


def alone(prompt, params, max_model_len):
    """Tokens and reason of a request that has the toy model to itself."""
    limit = min(params["max_tokens"], max_model_len - len(prompt))
    tokens = []
    while True:
        tokens.append(next_token([*prompt, *tokens], VOCAB))
        if len(tokens) >= params.get("min_tokens", 0):
            if tokens[-1] == EOS and not params["ignore_eos"]:
                return tokens, "stop", None
            if tokens[-1] in params["stop_token_ids"]:
                return tokens, "stop", tokens[-1]
        if len(tokens) == limit:
            return tokens, "length", None


def random_request(rng, shared):
    prompt = shared[: rng.choice([0, 8, 30, 40])] + [
        rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))
    ]
    params = {
        "max_tokens": rng.randrange(1, 40),
        "ignore_eos": rng.random() < 0.5,
        "stop_token_ids": [rng.randrange(VOCAB) for _ in range(rng.randrange(4))],
        "n": rng.choice([1, 1, 1, 3]),
        "kind": rng.choice(["final", "cumulative", "delta"]),
        "cache_salt": rng.choice([None, None, "a", "b"]),
    }
    if rng.random() < 0.1:
        params["min_tokens"] = rng.randrange(1, params["max_tokens"] + 1)
    if rng.random() < 0.05:
        params["bad_words"] = ["x"]  # which the toy device ignores; the row is host-dependent
    return prompt, params


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_is_the_one_a_request_has_alone(seed):
    rng = random.Random(seed)
    print(f"seed {seed}")
    setup = Setup(
        ahead=1 + seed // 2,
        num_blocks=rng.choice([17, 30, 80]),
        num_decode_steps=rng.choice([1, 3]),
        max_num_batched_tokens=rng.choice([8, 32, 64]),
        preemption_mode="swap" if seed % 2 else "recompute",
        num_host_blocks=10 if seed % 2 else 0,
    )
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    requests, collected, aborted = {}, {}, set()
    last_fault = 0
    while len(requests) < 150 or setup.engine.has_unfinished:
        if len(requests) < 150 and rng.random() < 0.5:
            name = str(len(requests))
            requests[name] = random_request(rng, shared)
            setup.add(name, requests[name][0], **requests[name][1])
        unfinished = setup.engine._requests.ids
        if unfinished and rng.random() < 0.03:
            name = rng.choice(unfinished)
            aborted.add(name)
            setup.engine.abort(name)
        if rng.random() < 0.05:
            setup.scheduler.preempt(rng.randrange(4))
        if rng.random() < 0.02 and setup.runner.num_launches > last_fault + 30:
            # Twice in a row a lone request would rightly be held at fault.
            last_fault = setup.runner.num_launches
            broken = rng.choice(
                [setup.runner.fail_launches, setup.runner.fail_samples, setup.runner.fail_fetches]
            )
            broken.add(setup.runner.num_launches)
        setup.engine.step()
        for output in setup.engine.take_outputs():
            collected.setdefault(output.request_id, []).append(output)
        setup.scheduler.check_invariants()
    for name in requests.keys() - aborted:
        prompt, params = requests[name]
        check(collected[name], params, alone(prompt, params, max_model_len=128))
    pool = setup.scheduler.pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    assert setup.runner.num_resets > 2
    assert setup.runner.constrained_samples > 2
    assert not setup.engine._requests.table.members
    assert all(request.is_finished for request in setup.engine._host_dependent.requests)


def check(outputs, params, expected):
    tokens, reason, stop_reason = expected
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    for i in range(params["n"]):
        parts = [output.outputs[i] for output in outputs]
        got = parts[-1].token_ids
        if params["kind"] == "delta":
            got = [token for part in parts for token in part.token_ids]
        assert got == tokens
        assert (parts[-1].finish_reason, parts[-1].stop_reason) == (reason, stop_reason)
