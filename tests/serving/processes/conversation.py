"""What both processes of `test_two_processes.py` run, and one process alone for comparison."""

import json
import signal
import sys
import threading
from typing import Any

import jax
import numpy as np

from jaxinfer import (
    LLM,
    ModelConfig,
    ParamsMapping,
    ParamSource,
    SamplingParams,
    abstract_params,
    load_params,
)
from jaxinfer.model.checkpoint import safetensors_file
from jaxinfer.serving.processes.start import start_processes

PROMPTS = [[1, 2, 3], [4, 5], list(range(6, 30))]
CROWD = [list(range(start, start + 24)) for start in (1, 40, 80)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=4, ignore_eos=True, n=2)
OPTIONS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "block_size": 8,
    "num_kv_blocks": 9,
    "compile_ahead": False,
    "show_progress": False,
    "preemption_mode": "swap",
    "swap_space": 0.01,
}


class ReadCounter:
    """Counts the bytes that are taken from mapped files."""

    def __init__(self) -> None:
        self.bytes = 0
        self._mapped = safetensors_file.TensorEntry.mapped
        safetensors_file.TensorEntry.mapped = lambda entry: _Counted(self._mapped(entry), self)

    def stop(self) -> int:
        safetensors_file.TensorEntry.mapped = self._mapped
        return self.bytes


class _Counted:
    """A mapped tensor of which only slices can be had."""

    def __init__(self, values: Any, counter: ReadCounter) -> None:
        self._values, self._counter = values, counter
        self.dtype, self.shape = values.dtype, values.shape

    def __getitem__(self, index: Any) -> Any:
        part = self._values[index]
        self._counter.bytes += part.nbytes
        return part


def tokens(outputs: list[Any]) -> list[list[list[int]]]:
    return [[list(completion.token_ids) for completion in output.outputs] for output in outputs]


def refusal(call: Any) -> str:
    """The error of a call that must fail; an engine that it makes all the same is closed."""
    try:
        if (made := call()) is not None:
            made.close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals(model: str, process_id: int) -> dict[str, str]:
    """Engines that can't be, each for a reason of its own."""
    options = {"model": model, **OPTIONS}
    return {
        "too many devices": refusal(lambda: LLM(**options, tensor_parallel_size=16)),
        "unequal shares": refusal(lambda: LLM(**options, tensor_parallel_size=1)),
        "no such axis": refusal(
            lambda: LLM(
                **options,
                mesh=jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)),
            )
        ),
        "indivisible": refusal(lambda: LLM(**options, tensor_parallel_size=6)),
        "other sizes": refusal(
            lambda: LLM(**{**options, "max_num_seqs": 4 + process_id}, tensor_parallel_size=8)
        ),
        "other mappings": refusal(lambda: mapped(model, scale=1.0 + process_id)),
        "one alone": refusal(
            lambda: LLM(
                **{**options, "model": model if process_id == 0 else f"{model}/missing"},
                tensor_parallel_size=8,
            )
        ),
    }


def mapped(model: str, scale: float) -> LLM:
    """An engine of parameters that nothing has filled: what they become is compared before."""
    config = ModelConfig.from_directory(model)
    sources = dict(ParamsMapping.hugging_face(config).sources)
    sources["model.norm"] = ParamSource("model.norm", scale=scale)
    params = abstract_params(config, "float32")
    mapping = ParamsMapping(sources)
    return LLM(params=params, config=config, mapping=mapping, tensor_parallel_size=8, **OPTIONS)


def ask(llm: LLM, others: Any) -> dict[str, Any]:
    """Everything that process 0 asks for, and what comes of it."""
    found: dict[str, Any] = {
        "greedy": tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)),
        "sampled": tokens(llm.generate(PROMPTS, SAMPLED, use_tqdm=False)),
        "measured": measured(llm),
        "seeded": tokens(llm.generate(PROMPTS[0], SAMPLED.clone(seed=7), use_tqdm=False)),
        "crowded": tokens(llm.generate(CROWD, GREEDY.clone(max_tokens=16), use_tqdm=False)),
        "preemptions": llm._loaded.replicas[0].scheduler.num_preemptions,
    }
    try:
        llm.generate([[1], [10**6]], GREEDY, use_tqdm=False)
    except ValueError as error:
        found["bad request"] = str(error)
    for i, prompt in enumerate(PROMPTS):
        llm.add_request(f"r{i}", prompt, GREEDY)
    streamed: dict[str, list[int]] = {}
    steps = 0
    while llm.has_unfinished_requests():
        for output in llm.step():
            streamed[output.request_id] = list(output.outputs[0].token_ids)
        steps += 1
        if steps == 3:
            llm.abort_request("r1")
    found["stepped"] = [streamed["r0"], streamed["r2"]]
    found["aborted early"] = len(streamed.get("r1", [])) < 6
    found["interrupted"] = interrupted(llm)
    found["after all that"] = tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    found["cached"] = cached_tokens(llm, list(range(60, 84)))
    llm.update_params(others, ParamsMapping.hugging_face(llm.model_config))
    found["other weights"] = tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    return found


def refused_update(llm: LLM, update: Any) -> dict[str, Any]:
    """Why processes that differ in their mappings swap no weights, and whether all live on."""
    error = refusal(update)
    present = jax.tree.leaves(llm._loaded.replicas[0].runner.resident.params)
    return {"other mappings": error, "weights live": not any(x.is_deleted() for x in present)}


def cached_tokens(llm: LLM, prompt: list[int]) -> list[Any]:
    """A prompt's cached tokens when it is new, known, and after a reset, each with its answer."""
    found: list[Any] = []
    for is_reset in (False, False, True):
        if is_reset:
            llm.reset_prefix_cache()
        (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
        found.append([output.num_cached_tokens, list(output.outputs[0].token_ids)])
    return found


def measured(llm: LLM) -> list[Any]:
    """What is measured of answers that begin with given tokens, to a few digits."""
    wanted = {"logprobs": 0, "entropy": True, "support": 2, "logprob_token_ids": [5]}
    params = GREEDY.clone(temperature=0.7, top_k=3, seed=1, forced_token_ids=[7, 8], **wanted)
    found: list[Any] = []
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        (answer,) = output.outputs
        values = [entry[5].logprob for entry in answer.logprobs or ()]
        floats = [round(value, 2) for value in (*values, *(answer.entropies or ()))]
        ids = [list(support.token_ids) for support in answer.supports or ()]
        found.append([list(answer.token_ids), floats, ids])
    return found


def interrupted(llm: LLM) -> bool:
    """Whether Ctrl-C, pressed during the third step, ends a call."""
    engine: Any = llm._loaded.engine
    original, steps = engine.step, 0

    def step() -> None:
        nonlocal steps
        steps += 1
        original()
        if steps == 3:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    engine.step = step
    try:
        llm.generate([[5]] * 200, GREEDY, use_tqdm=False)
    except KeyboardInterrupt:
        return True
    finally:
        engine.step = original
    return False


def changed(llm: LLM) -> Any:
    """Other weights, where the present ones lie."""
    return jax.tree.map(lambda leaf: leaf * 1.5, llm._loaded.replicas[0].runner.resident.params)


def restores_the_same(llm: LLM, directory: str) -> bool:
    """Whether an Orbax checkpoint gives this process's devices what safetensors gave them."""
    present = llm._loaded.replicas[0].runner.resident.params
    mesh = present["model"]["norm"].sharding.mesh
    restored = load_params(directory, llm.model_config, "float32", mesh)
    return all(
        np.array_equal(mine.data, theirs.data) and mine.device == theirs.device
        for one, other in zip(jax.tree.leaves(present), jax.tree.leaves(restored), strict=True)
        for mine, theirs in zip(one.addressable_shards, other.addressable_shards, strict=True)
    )


def converse(model: str, tensor_parallel_size: int) -> dict[str, Any]:
    """What this process has to say."""
    counter = ReadCounter()
    with LLM(model, tensor_parallel_size=tensor_parallel_size, **OPTIONS) as llm:
        found: dict[str, Any] = {"bytes read": counter.stop()}
        found["orbax is the same"] = restores_the_same(llm, f"{model}/as_orbax")
        if not llm.follows:
            found |= ask(llm, changed(llm))
            # The others map what they give.
            return found | refused_update(llm, lambda: llm.update_params(changed(llm)))
        found["refused here"] = refusal(lambda: llm.generate("x"))
        mapping = ParamsMapping.hugging_face(llm.model_config)
        return found | refused_update(llm, lambda: llm.follow(lambda: changed(llm), mapping))


def main(model: str) -> None:
    start_processes()
    refused = refusals(model, jax.process_index())
    print(json.dumps({"refusals": refused} | converse(model, tensor_parallel_size=8)))


if __name__ == "__main__":
    main(sys.argv[1])
