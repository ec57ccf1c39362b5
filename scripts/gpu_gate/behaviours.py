"""Checks of a started engine's behaviour: groups, full sampling, aborts, new weights."""

import importlib.util
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer import LLM, SamplingParams
from jaxinfer.kernels.attention.shared_prefix import KEYS
from jaxinfer.outputs import CompletionOutput
from jaxinfer.serving.runner import batch_builder
from scripts.evaluation.items.mixture import held_out_items
from scripts.gpu_gate.agreement import CheckError, check_greedy_all, check_sampled
from scripts.gpu_gate.rows import Row

# Enough rows that reading what they share once is worth it.
_NUM_GROUPS, _GROUP, _GROUP_PROMPT = 4, 16, 4 * KEYS + 44
_ISOLATED_EVERY = 3
_LENGTHS = (5, 40, 64, 65, 130, 200)
_LONGEST = 40
_SCHEMAS = [
    {"type": "string", "minLength": 10, "maxLength": _LONGEST},
    {
        "type": "object",
        "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["count"],
        "additionalProperties": False,
    },
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=5)


def check_behaviours(llm: LLM) -> list[Row]:
    """Run every check on an engine of the bundled model; a row for each."""
    return [check_one(name, llm, check) for name, check in CHECKS.items()]


def check_one(name: str, llm: LLM, check: Callable[[LLM], str]) -> Row:
    """Run one check; afterwards all blocks must be free, and nothing may have been compiled."""
    compiled = llm.num_compilations
    try:
        what = check(llm)
        for replica in llm._loaded.replicas:
            replica.scheduler.check_invariants()
            pool = replica.scheduler.pool
            if pool.num_free_blocks != pool.num_usable_blocks:
                held = pool.num_usable_blocks - pool.num_free_blocks
                raise CheckError(f"{held} blocks are still held")
        compiled = llm.num_compilations - compiled
        if compiled and llm.engine_config.compiles_ahead(jax.default_backend()):
            raise CheckError(f"{compiled} programs were compiled after the start")
    except Exception as error:  # any exception is a row of the table
        return Row(name, f"{type(error).__name__}: {error}".splitlines()[0][:300], False)
    return Row(name, what, True)


def check_groups(llm: LLM) -> str:
    """Samples of a few prompts, whose keys are read once, agree with samples drawn alone."""
    ids = story_ids(llm, _GROUP_PROMPT + _NUM_GROUPS)
    prompts = [ids[i : i + _GROUP_PROMPT] for i in range(_NUM_GROUPS)]
    params = SamplingParams(max_tokens=32, ignore_eos=True, seed=1234, logprobs=0)
    with _SharedKeys() as shared:
        groups = answers(llm, prompts, params.clone(n=_GROUP))
    if llm.report.attention_backend == "mosaic" and max(shared.keys, default=0) < 4 * KEYS:
        raise CheckError(f"keys read once: {shared.keys[:8]}; samples share {4 * KEYS}")
    common = total = 0
    for prompt, group in zip(prompts, groups, strict=True):
        for i, sample in enumerate(group[::_ISOLATED_EVERY]):
            ((alone,),) = answers(llm, [prompt], params.clone(seed=1234 + i * _ISOLATED_EVERY))
            common += check_sampled(alone, sample)
            total += len(sample.token_ids)
    if common < 0.75 * total:
        raise CheckError(f"{common} of {total} tokens are as in isolated runs")
    read_once = f"{max(shared.keys, default=0)} keys read once"
    return f"{common} of {total} tokens as in isolated runs, {read_once}"


def check_full_step(llm: LLM) -> str:
    """A request with every edit of its logits ends as defined and changes no batch mate."""
    prompts = ragged_prompts(llm)
    plain = flat(answers(llm, prompts, GREEDY))
    end, banned = min(llm._loaded.replicas[0].scheduler.eos_token_ids), plain[0].token_ids[0]
    full = GREEDY.clone(
        ignore_eos=False,
        min_tokens=8,
        logit_bias={end: 100.0, banned: -100.0},
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
    )
    mixed = flat(answers(llm, [prompts[0], *prompts], [full, *[GREEDY] * len(prompts)]))
    edited, mates = mixed[0], mixed[1:]
    check_greedy_all(plain, mates)
    # The end is the likeliest by far, and forbidden until 8 tokens are out.
    if len(edited.token_ids) != 9 or edited.token_ids[-1] != end:
        raise CheckError(f"min_tokens=8 and a bias to the end gave {edited.token_ids}")
    if banned in edited.token_ids:
        raise CheckError(f"token {banned} has a bias of -100 and was chosen")
    for answer in mixed:
        for token, entry in zip(answer.token_ids, answer.logprobs or [], strict=True):
            if len(entry) < 5 or not np.isfinite(entry[token].logprob):
                raise CheckError(f"token {token} has the log-probability {entry[token].logprob}")
            if answer is not edited and entry[token].rank != 1:
                raise CheckError(f"token {token} is greedy and of rank {entry[token].rank}")
    # By itself the model would have gone on.
    if (edited.logprobs or [])[-1][end].rank == 1:
        raise CheckError("the end has rank 1: its log-probability is not the model's own")
    return f"ended after 8 tokens and the end; {len(mates)} batch mates unchanged"


def check_grammars(llm: LLM) -> str:
    """Answers follow their schemas, and change no batch mate."""
    if importlib.util.find_spec("llguidance") is None:
        return "not checked: llguidance is not installed"
    prompts = ragged_prompts(llm)
    plain = flat(answers(llm, prompts, GREEDY))
    guided = [
        GREEDY.clone(logprobs=None, max_tokens=96, structured_outputs={"json": schema})
        for schema in _SCHEMAS * 2
    ]
    guided = [*guided[: len(_SCHEMAS)], *(each.clone(temperature=1.0) for each in guided)]
    mixed = [*guided, *[GREEDY] * len(prompts)]
    found = flat(answers(llm, [prompts[0]] * len(guided) + prompts, mixed))
    check_greedy_all(plain, found[len(guided) :])
    values = [json.loads(answer.text) for answer in found[: len(guided)]]
    for value in values:
        fits = len(value) <= _LONGEST if isinstance(value, str) else value["count"] in range(100)
        if not fits:
            raise CheckError(f"an answer is {value!r}, which its schema forbids")
    return f"{len(values)} answers follow their schemas; {len(prompts)} batch mates unchanged"


def check_abort(llm: LLM) -> str:
    """Requests that are aborted in mid-run free their blocks, and the others go on."""
    prompts = ragged_prompts(llm)
    expected = flat(answers(llm, prompts, GREEDY))
    names = [f"abort {i}" for i in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        llm.add_request(name, {"prompt_token_ids": prompt}, GREEDY)
    found: dict[str, CompletionOutput] = {}
    for step in itertools.count():
        if not llm.has_unfinished_requests():
            break
        if step == 2:
            llm.abort_request(names[::2])
        found |= {output.request_id: output.outputs[0] for output in llm.step() if output.finished}
    if not found.keys() == {*names[1::2]}:
        raise CheckError(f"these ended: {sorted(found)}")
    check_greedy_all(expected[1::2], [found[name] for name in names[1::2]])
    return f"{len(names[::2])} of {len(names)} aborted, the others unchanged"


def check_new_weights(llm: LLM) -> str:
    """Other weights give other tokens, the first ones the first tokens; no prefix outlives them."""
    prompts = ragged_prompts(llm)
    first = llm._loaded.replicas[0].runner.resident.params
    others = jax.tree.map(_scaled, first)
    before = flat(answers(llm, prompts, GREEDY))
    llm.update_params(others)
    between = llm.generate(_inputs(prompts), GREEDY, use_tqdm=False)
    llm.update_params(first)
    after = llm.generate(_inputs(prompts), GREEDY, use_tqdm=False)
    cached = sum(output.num_cached_tokens for output in between + after)
    if cached:
        raise CheckError(f"{cached} tokens came from a cache filled with other weights")
    changed = [output.outputs[0].token_ids for output in between]
    if changed == [list(answer.token_ids) for answer in before]:
        raise CheckError("other weights gave the same tokens")
    check_greedy_all(before, [output.outputs[0] for output in after])
    return "other tokens with other weights, the same with the first ones"


CHECKS: dict[str, Callable[[LLM], str]] = {
    "groups": check_groups,
    "full step": check_full_step,
    "grammars": check_grammars,
    "abort": check_abort,
    "update_params": check_new_weights,
}


def ragged_prompts(llm: LLM) -> list[list[int]]:
    """Prompts of many lengths."""
    ids = story_ids(llm, max(_LENGTHS) + len(_LENGTHS))
    return [ids[i : i + length] for i, length in enumerate(_LENGTHS)]


def story_ids(llm: LLM, count: int) -> list[int]:
    """The first tokens of text like the bundled model's."""
    if llm.tokenizer is None:
        raise CheckError("the engine has no tokenizer")
    text = " ".join(item.prompt + item.answer for item in held_out_items("story", 16))
    ids = llm.tokenizer.encode(text)
    if len(ids) < count:
        raise CheckError(f"the stories have {len(ids)} tokens, not {count}")
    return ids[:count]


def answers(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[list[CompletionOutput]]:
    """Completions of each prompt, computed from an empty prefix cache.

    Raises:
        CheckError: a request ended with an error.
    """
    llm.reset_prefix_cache()
    outputs = llm.generate(_inputs(prompts), params, use_tqdm=False)
    errors = [output.error for output in outputs if output.error]
    if errors:
        raise CheckError(errors[0])
    return [output.outputs for output in outputs]


def flat(groups: list[list[CompletionOutput]]) -> list[CompletionOutput]:
    """The only completion of each prompt."""
    return [group[0] for group in groups]


def _scaled(leaf: jax.Array) -> jax.Array:
    """The leaf times 1.5, by the host: a product on the device would be compiled."""
    scaled = np.asarray(leaf, np.float32) * 1.5
    return jax.device_put(scaled.astype(leaf.dtype), leaf.sharding)


def _inputs(prompts: Sequence[list[int]]) -> Any:
    return [{"prompt_token_ids": list(prompt)} for prompt in prompts]


class _SharedKeys:
    """Records how many keys each group of rows had read once, while the context is open."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self._write = batch_builder.write_items

    def __enter__(self) -> "_SharedKeys":
        batch_builder.write_items = self._recorded
        return self

    def __exit__(self, *_: object) -> None:
        batch_builder.write_items = self._write

    def _recorded(self, into: Any, groups: Any) -> None:
        self.keys += [group.keys for group in groups]
        self._write(into, groups)
