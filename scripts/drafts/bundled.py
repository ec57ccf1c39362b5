"""The bundled model's own answers with drafts and without: differences, tokens and seconds."""

import time
from collections.abc import Sequence
from typing import Any

from examples.grpo import PROMPTS
from jaxinfer import LLM, RequestOutput, SamplingParams
from scripts.drafts.measure import drafting, metric
from scripts.evaluation.items.mixture import held_out_items
from scripts.speed.report import engine_record

_PROMPTS, _TOKENS, _AT_ONCE, _CROWD, _LIKELIEST = 64, 100, 4, 32, 20
_SAMPLES = 16


def answers_report(*, engine_arguments: dict[str, Any]) -> dict[str, Any]:
    """How answers to halves of stories differ with drafts, and how long they take.

    Beside them, how many differ where more requests run at once: its products round otherwise.

    Args:
        engine_arguments: what the user set, with a `speculative_config`.
    """
    stories = [item.prompt + item.answer for item in held_out_items("story", _PROMPTS)]
    prompts = [story[: len(story) // 2] for story in stories]
    cases: dict[str, Any] = {}
    with LLM(**engine_arguments) as llm:
        for temperature in (0.0, 0.9):
            params = SamplingParams(
                temperature=temperature, max_tokens=_TOKENS, ignore_eos=True, seed=1
            )
            cases[f"temperature {temperature}"] = _compare(llm, prompts, params)
        return {"cases": cases, **engine_record(llm, None)}


def groups_report(*, engine_arguments: dict[str, Any]) -> dict[str, Any]:
    """Samples of the prompts of `examples/grpo.py`, one group after the other, in two rounds.

    Args:
        engine_arguments: what the user set, with a `speculative_config`.
    """
    rounds = []
    arguments: dict[str, Any] = {"max_num_seqs": _SAMPLES, "max_model_len": 512}
    with LLM(**arguments | engine_arguments) as llm:
        for number in range(3):
            plain, with_drafts = _groups(llm, number, False), _groups(llm, number, True)
            rounds.append({"plain": plain, "drafts": with_drafts})
        return {"samples": _SAMPLES, "rounds": rounds[1:], **engine_record(llm, None)}


def answers_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    lines = []
    for name, case in report["cases"].items():
        seconds = case["seconds"]
        lines.append(
            f"{name}: {case['accepted']:,} of {case['tokens']:,} tokens from drafts, "
            f"{seconds['plain'] / seconds['drafts']:.2f}x tokens a second"
        )
        for kind, gaps in case["differences"].items():
            lines.append(
                f"  {len(gaps)} of {case['of']} answers differ {kind}; the tokens' "
                f"log-probabilities there are {gaps} apart"
            )
    return lines


def groups_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    return [
        f"round {number}: {each['drafts']['accepted']:,} of {each['drafts']['tokens']:,} tokens "
        f"from drafts, {each['plain']['seconds'] / each['drafts']['seconds']:.2f}x tokens a second"
        for number, each in enumerate(report["rounds"], 1)
    ]


def _groups(llm: LLM, number: int, is_drafting: bool) -> dict[str, Any]:
    """One round of all groups: tokens, those from drafts, and seconds."""
    params = SamplingParams(
        n=_SAMPLES, temperature=1.0, max_tokens=128, seed=number, detokenize=False
    )
    llm.reset_prefix_cache()
    outputs: list[RequestOutput] = []
    start = time.perf_counter()
    with drafting(is_drafting):
        for prompt in PROMPTS:
            outputs += llm.generate(prompt, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": sum(len(answer.token_ids) for each in outputs for answer in each.outputs),
        "accepted": sum(int(metric(each, "num_accepted_tokens")) for each in outputs),
    }


def _compare(llm: LLM, prompts: Sequence[str], params: SamplingParams) -> dict[str, Any]:
    def ask(num_rows: int, is_drafting: bool) -> tuple[list[RequestOutput], float]:
        answers: list[RequestOutput] = []
        llm.reset_prefix_cache()
        start = time.perf_counter()
        with drafting(is_drafting):
            for first in range(0, len(prompts), num_rows):
                answers += llm.generate(prompts[first : first + num_rows], params, use_tqdm=False)
        return answers, time.perf_counter() - start

    for is_drafting in (False, True):  # warms up
        ask(_AT_ONCE, is_drafting)
    (plain, plain_s), (drafts, drafts_s) = ask(_AT_ONCE, False), ask(_AT_ONCE, True)
    crowd, _ = ask(_CROWD, False)
    return {
        "of": len(prompts),
        "tokens": sum(len(output.outputs[0].token_ids) for output in drafts),
        "accepted": sum(int(metric(each, "num_accepted_tokens")) for each in drafts),
        "seconds": {"plain": plain_s, "drafts": drafts_s},
        "differences": {
            "with drafts": _differences_of(llm, plain, drafts),
            f"without, {_CROWD} at once": _differences_of(llm, plain, crowd),
        },
    }


def _differences_of(
    llm: LLM, answers: Sequence[RequestOutput], others: Sequence[RequestOutput]
) -> list[float | None]:
    """`_gap` of each pair that differs."""
    pairs = zip(answers, others, strict=True)
    places = [(one, other, _parting(one, other)) for one, other in pairs]
    return [_gap(llm, one, other, place) for one, other, place in places if place is not None]


def _parting(one: RequestOutput, other: RequestOutput) -> int | None:
    """The number of the first token that differs; None if none does."""
    pairs = zip(one.outputs[0].token_ids, other.outputs[0].token_ids, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def _gap(llm: LLM, one: RequestOutput, other: RequestOutput, place: int) -> float | None:
    """How far apart the model's log-probabilities of two tokens at a place are.

    None if one of them isn't among the likeliest: sampled tokens part where the draw is at the edge
    between two, whose probabilities may differ.
    """
    tokens, others = one.outputs[0].token_ids, other.outputs[0].token_ids
    before = [*(one.prompt_token_ids or ()), *tokens[:place]]
    likeliest = SamplingParams(temperature=0.0, max_tokens=1, logprobs=_LIKELIEST)
    (scored,) = llm.generate([before], likeliest, use_tqdm=False)
    (found,) = scored.outputs[0].logprobs or [{}]
    if not {tokens[place], others[place]} <= found.keys():
        return None
    return round(abs(found[tokens[place]].logprob - found[others[place]].logprob), 4)
