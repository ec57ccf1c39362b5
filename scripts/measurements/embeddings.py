"""Measures how fast an engine for pooling embeds, beside prompts of one that generates."""

import dataclasses
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from jaxinfer.measure.random_weights import build_engine
from jaxinfer.planning.cost import model_cost, prefill_floor_s
from jaxinfer.planning.devices import find_chip
from jaxinfer.planning.shapes import shape_of
from jaxinfer.profiling.figures import share_text
from scripts.speed.engine_report import heading, num_devices
from scripts.speed.report import engine_record
from scripts.speed.workload_runs import measure_workloads

if TYPE_CHECKING:
    from jaxinfer import LLM

TEXT_TOKENS = 512
WANTED_RATIO = 0.9
"""The least that embedding should reach of W3's prompt tokens a second."""
_FIRST_TOKEN_IDS = 10_000
_WARM_UP = -1  # the repeat whose ids warm the engine up


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingTiming:
    """One run over all texts.

    Attributes:
        seconds: from the call to the last vector on the host.
        num_prompt_tokens: of all texts.
        num_compilations: programs that were built meanwhile.
    """

    seconds: float
    num_prompt_tokens: int
    num_compilations: int


def embedding_report(
    model_shape: str | None,
    *,
    engine_arguments: dict[str, Any],
    num_texts: int,
    text_tokens: int = TEXT_TOKENS,
    repeats: int,
) -> dict[str, Any]:
    """Embed random texts on one engine, then run W3 on another in the same process.

    Args:
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set.
        num_texts: texts a call.
        text_tokens: of each text.
        repeats: counted calls, each with new ids and an empty prefix cache, after one that is not.

    Returns:
        JSON-like values: the engine and its machine, every repeat, the median, W3's prompt tokens a
        second on an engine that generates, and the ratio of the two. "num_compilations" counts what
        the repeats of both compiled: figures stand only when it is 0.

    Raises:
        RuntimeError: a text has no vector of its own.
    """
    own = {"runner": "pooling", "max_model_len": text_tokens, "max_num_seqs": min(num_texts, 256)}
    with build_engine(model_shape, own | engine_arguments) as llm:
        timings = [
            _embed(llm, _texts(repeat, num_texts, text_tokens, llm.model_config.vocab_size))
            for repeat in range(_WARM_UP, repeats)
        ][1:]
        report = {
            **engine_record(llm, model_shape),
            "texts": num_texts,
            "text_tokens": text_tokens,
            "start_up": dataclasses.asdict(llm.start_up),
            "num_programs": llm.num_compilations - sum(each.num_compilations for each in timings),
            "floor_s": _floor_s(llm, num_texts, text_tokens),
        }
    seconds = [each.seconds for each in timings]
    median = statistics.median(seconds)
    generates = {**engine_arguments, "runner": "generate"}
    (workload,) = measure_workloads(
        ["W3"], model_shape=model_shape, engine_arguments=generates, repeats=repeats
    )
    prompt_tokens_per_s = num_texts * text_tokens / median
    beside = workload["runs"]["cold"]["median"]["prompt_tokens_per_s"]
    return report | {
        "repeats": [dataclasses.asdict(each) for each in timings],
        "seconds": median,
        "spread": max(seconds) / min(seconds),
        "prompt_tokens_per_s": prompt_tokens_per_s,
        "w3_prompt_tokens_per_s": beside,
        "ratio": prompt_tokens_per_s / beside,
        "wanted_ratio": WANTED_RATIO,
        "num_compilations": workload["num_compilations"]
        + sum(each.num_compilations for each in timings),
    }


def embedding_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    floor = report["floor_s"]
    share = "" if floor is None else f", {share_text(floor / report['seconds'])} of the floor"
    lines = [
        *heading(report),
        "",
        f"{report['texts']} texts of {report['text_tokens']} tokens: "
        f"{report['prompt_tokens_per_s']:,.0f} prompt tok/s{share}, spread {report['spread']:.3f}",
        f"W3 of an engine that generates: {report['w3_prompt_tokens_per_s']:,.0f} prompt tok/s; "
        f"ratio {report['ratio']:.2f} (wanted {report['wanted_ratio']} or more)",
    ]
    if start := report.get("start"):
        from scripts.measurements.engine_start import engine_start_lines

        lines += engine_start_lines(start)
    return lines


def _texts(repeat: int, num_texts: int, text_tokens: int, vocab_size: int) -> list[list[int]]:
    source = random.Random(f"embeddings {repeat}")
    limit = min(vocab_size, _FIRST_TOKEN_IDS)
    return [[source.randrange(limit) for _ in range(text_tokens)] for _ in range(num_texts)]


def _embed(llm: "LLM", texts: list[list[int]]) -> EmbeddingTiming:
    llm.reset_prefix_cache()
    compiled = llm.num_compilations
    start = time.perf_counter()
    outputs = llm.embed(texts)
    seconds = time.perf_counter() - start
    if len({output.embedding.tobytes() for output in outputs}) < len(texts):
        raise RuntimeError("different texts have the same vector")
    return EmbeddingTiming(
        seconds=seconds,
        num_prompt_tokens=sum(map(len, texts)),
        num_compilations=llm.num_compilations - compiled,
    )


def _floor_s(llm: "LLM", num_texts: int, text_tokens: int) -> float | None:
    """Least seconds of all prefills, as if devices did equal shares; None for an unknown chip."""
    import jax

    chip = find_chip(jax.devices()[0].device_kind)
    if chip is None:
        return None
    cost = model_cost(shape_of(llm.model_config))
    return prefill_floor_s(cost, chip, [text_tokens] * num_texts) / num_devices(llm)
