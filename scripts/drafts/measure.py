"""Times answers with and without drafts, side by side on one engine."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from jaxinfer import LLM, ModelConfig, RequestOutput, SamplingParams
from jaxinfer.measure.random_weights import build_engine, random_weights
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.serving.scheduler.speculation import SpeculativePlanner
from scripts.drafts.texts import KINDS, Text, make_texts, scripted_sampler
from scripts.speed.report import engine_record
from scripts.speed.timing import run_workload
from scripts.speed.workloads import make_workload


@dataclasses.dataclass(frozen=True)
class Run:
    """Some answers at once.

    Attributes:
        tpot_ms: milliseconds a token, the median of the rows.
        step_ms: milliseconds a step, the median of the rows: drafts that agree take none.
        tokens_per_s: of all rows.
        gained: drafts that agreed, a step.
    """

    tpot_ms: float
    step_ms: float
    tokens_per_s: float
    gained: float


def drafts_report(
    model_shape: str | None,
    *,
    engine_arguments: dict[str, Any],
    rows: Sequence[int],
    prompt_len: int,
    output_len: int,
    repeats: int,
) -> dict[str, Any]:
    """Times of all kinds of texts, with drafts and without.

    Args:
        model_shape: a name of `SERVED_SHAPES`, with random weights; None for the bundled model.
        engine_arguments: what the user set, with a `speculative_config`.
        rows: numbers of answers at once.
        prompt_len: tokens of each prompt.
        output_len: tokens of each answer, no more.
        repeats: counted runs of each, after one that is not.

    Raises:
        RuntimeError: an answer is not the text's.
    """
    most = max(rows)
    lengths = {"prompt_len": prompt_len, "output_len": output_len}
    size = _vocab_size(model_shape)
    texts = {kind: make_texts(kind, most, vocab_size=size, **lengths) for kind in KINDS}
    sampler = scripted_sampler([text for of_kind in texts.values() for text in of_kind])
    arguments: dict[str, Any] = {
        "max_num_seqs": most,
        "max_model_len": prompt_len + output_len,
    } | engine_arguments
    cases: dict[str, Any] = {}
    weights = {} if model_shape is None else random_weights(model_shape, arguments)
    with LLM(sampler=sampler, **{**arguments, **weights}) as llm:
        compiled = llm.num_compilations
        for number, (kind, of_kind) in enumerate(texts.items()):
            for count in rows:
                first = number * most
                cases[f"{kind}, {count}"] = _case(llm, of_kind[:count], first, repeats)
        return {
            **lengths,
            "repeats": repeats,
            "texts": {kind: description for kind, (description, _) in KINDS.items()},
            "num_compilations": llm.num_compilations - compiled,
            "cases": cases,
            **engine_record(llm, model_shape),
        }


def crowd_report(model_shape: str, *, engine_arguments: dict[str, Any]) -> dict[str, Any]:
    """Seconds of W1 with drafts and without.

    Args:
        model_shape: a name of `SERVED_SHAPES`, with random weights.
        engine_arguments: what the user set, with a `speculative_config`.
    """
    workload = make_workload("W1", 0, vocab_size=10_000)
    arguments = {
        "max_num_seqs": workload.num_sequences,
        "max_model_len": workload.max_model_len,
    } | engine_arguments
    seconds: dict[str, list[float]] = {"plain": [], "drafts": []}
    with build_engine(model_shape, arguments) as llm:
        compiled = llm.num_compilations
        for repeat in range(-1, 2):
            for name, each in seconds.items():
                llm.reset_prefix_cache()
                with drafting(name == "drafts"):
                    taken = run_workload(llm, make_workload("W1", repeat, vocab_size=10_000))
                if repeat >= 0:
                    each.append(taken.seconds)
        return {
            "W1": {name: statistics.median(each) for name, each in seconds.items()},
            "num_compilations": llm.num_compilations - compiled,
            **engine_record(llm, model_shape),
        }


def drafts_lines(report: dict[str, Any]) -> list[str]:
    """The report as a table for people."""
    lines = [
        f"{'texts, rows':<14}{'TPOT ms':>9}{'drafts':>9}{'ratio':>7}{'step ratio':>12}{'gained':>8}"
        f"{'tokens/s':>10}"
    ]
    for name, case in report["cases"].items():
        plain, drafts = case["plain"], case["drafts"]
        lines.append(
            f"{name:<14}{plain['tpot_ms']:>9.3f}{drafts['tpot_ms']:>9.3f}"
            f"{drafts['tpot_ms'] / plain['tpot_ms']:>7.2f}"
            f"{drafts['step_ms'] / plain['step_ms']:>12.2f}{drafts['gained']:>8.2f}"
            f"{drafts['tokens_per_s'] / plain['tokens_per_s']:>9.2f}x"
        )
    return [*lines, f"{report['num_compilations']} programs compiled while measuring"]


def crowd_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    seconds = report["W1"]
    return [
        f"W1: {seconds['plain']:.3f} s plain, {seconds['drafts']:.3f} s with drafts, "
        f"{seconds['drafts'] / seconds['plain']:.3f}",
        f"{report['num_compilations']} programs compiled while measuring",
    ]


def _vocab_size(model_shape: str | None) -> int:
    if model_shape is None:
        return ModelConfig.from_directory(BUNDLED_MODEL).vocab_size
    return shape_config(model_shape).vocab_size


def _case(llm: LLM, texts: Sequence[Text], first: int, repeats: int) -> dict[str, Any]:
    """The medians of runs with drafts and without, in turns."""
    runs: dict[str, list[Run]] = {"plain": [], "drafts": []}
    for repeat in range(repeats + 1):
        for name, each in runs.items():
            with drafting(name == "drafts"):
                run = _run(llm, texts, first)
            if repeat:
                each.append(run)
    return {
        name: {
            field.name: statistics.median(getattr(run, field.name) for run in each)
            for field in dataclasses.fields(Run)
        }
        for name, each in runs.items()
    }


def _run(llm: LLM, texts: Sequence[Text], first: int) -> Run:
    params = [
        SamplingParams(
            max_tokens=len(text.answer), ignore_eos=True, detokenize=False, seed=first + i
        )
        for i, text in enumerate(texts)
    ]
    llm.reset_prefix_cache()
    start = time.perf_counter()
    outputs = llm.generate([list(text.prompt) for text in texts], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    for output, text in zip(outputs, texts, strict=True):
        if list(output.outputs[0].token_ids) != list(text.answer):
            raise RuntimeError(f"request {output.request_id} did not answer its text")
    tokens = [len(text.answer) for text in texts]
    tpots = [metric(output, "tpot") for output in outputs]
    gains = [metric(output, "num_accepted_tokens") for output in outputs]
    steps = [count - 1 - gain for count, gain in zip(tokens, gains, strict=True)]
    step_times = [
        tpot * (count - 1) / n for tpot, count, n in zip(tpots, tokens, steps, strict=True)
    ]
    return Run(
        tpot_ms=statistics.median(tpots) * 1e3,
        step_ms=statistics.median(step_times) * 1e3,
        tokens_per_s=sum(tokens) / seconds,
        gained=sum(gains) / sum(steps),
    )


def metric(output: RequestOutput, name: str) -> float:
    """A value of a request's metrics.

    Raises:
        RuntimeError: there is none.
    """
    value = getattr(output.metrics, name)
    if value is None:
        raise RuntimeError(f"request {output.request_id} has no {name}")
    return value


@contextlib.contextmanager
def drafting(is_drafting: bool) -> Iterator[None]:
    """Plan no step with drafts unless there are to be."""
    if is_drafting:
        yield
        return
    with mock.patch.object(SpeculativePlanner, "_plan", return_value=None):
        yield
