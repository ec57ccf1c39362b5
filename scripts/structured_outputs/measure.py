"""Times rows with and without grammars, side by side on one engine."""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jaxinfer import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from jaxinfer.measure.random_weights import random_weights
from jaxinfer.serving.engine import host_dependent
from scripts.speed.report import engine_record
from scripts.structured_outputs.corpus import CORPUS, PROSE, TEXTS, endless
from scripts.structured_outputs.vocabulary import synthetic_tokenizer

_PROMPT_LEN = 32
_PHRASE = ["no such phrase"]  # to be banned, whose row is host-dependent, and nothing else changes


@dataclasses.dataclass
class GrammarTime:
    """Host time of `HostDependentRows.constrain`, where steps get their masks.

    Attributes:
        seconds: of each call.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def milliseconds(self) -> float | None:
        """The median; None if nothing had a grammar."""
        return statistics.median(self.seconds) * 1e3 if self.seconds else None


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch of rows.

    Attributes:
        params: of each row.
        masks_only: whether every token is drawn under a mask, and none is appended because the
            grammar forces it.
        timed: rows whose time per token counts; all by default.
    """

    params: Sequence[SamplingParams]
    masks_only: bool = False
    timed: slice = slice(None)


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run of a case took.

    Attributes:
        tpot_ms: milliseconds per output token, the median of the timed rows.
        tokens_per_s: of all rows.
        grammar_ms: host time of grammars a step, the median; None without grammars.
    """

    tpot_ms: float
    tokens_per_s: float
    grammar_ms: float | None


def structured_outputs_report(
    model_shape: str | None,
    *,
    engine_arguments: dict[str, Any],
    rows: int,
    output_len: int,
    repeats: int,
) -> dict[str, Any]:
    """Times per token, tokens a second, and the host time of grammars.

    Args:
        model_shape: a name of `SERVED_SHAPES`, with random weights and a synthetic tokenizer; None
            for the bundled model, or the one that `engine_arguments` name.
        engine_arguments: what the user set.
        rows: requests at once.
        output_len: tokens of each answer, where its grammar has no end.
        repeats: counted runs of each case, after one that is not.
    """
    arguments = {
        "max_num_seqs": rows,
        "max_model_len": _PROMPT_LEN + max(output_len, 256),
    } | engine_arguments
    cases = _cases(rows, output_len)
    with _engine(model_shape, arguments) as llm:
        measured = [
            {name: _run(llm, case) for name, case in cases.items()} for _ in range(repeats + 1)
        ][1:]
        record = {name: _middle([each[name] for each in measured]) for name in cases}
        return {
            "rows": rows,
            "output_len": output_len,
            "cases": record,
            "ratios": _ratios(record),
            **engine_record(llm, model_shape),
        }


def structured_outputs_lines(report: dict[str, Any]) -> list[str]:
    """The report as a table for people."""
    lines = [f"{'case':<24}{'TPOT ms':>9}{'tokens/s':>11}{'grammars ms/step':>18}{'spread':>8}"]
    for name, case in report["cases"].items():
        grammars = case["grammar_ms"]
        shown = f"{grammars:.2f}" if grammars is not None else "-"
        lines.append(
            f"{name:<24}{case['tpot_ms']:>9.2f}{case['tokens_per_s']:>11,.0f}{shown:>18}"
            f"{case['spread']:>8.2f}"
        )
    return [*lines, *(f"{name}: {ratio:.2f}" for name, ratio in report["ratios"].items())]


def _cases(rows: int, output_len: int) -> dict[str, Case]:
    plain = SamplingParams(max_tokens=output_len, ignore_eos=True, seed=1)
    late = plain.clone(bad_words=_PHRASE)
    texts = [_guided(TEXTS, output_len, i) for i in range(rows)]
    prose = [_params_of(StructuredOutputsParams(regex=PROSE), output_len, i) for i in range(rows)]
    long = [_guided(endless(CORPUS[i % len(CORPUS)]), output_len, i) for i in range(rows)]
    short = [_guided(CORPUS[i % len(CORPUS)], 256, i) for i in range(rows)]
    half = rows // 2
    beside = [plain] * half
    return {
        "plain": Case([plain] * rows),
        "late": Case([late] * rows),
        "prose": Case(prose),
        "texts": Case(texts),
        "records": Case(long),
        "records, masks only": Case(long, masks_only=True),
        "beside late": Case(beside + [late] * (rows - half), timed=slice(half)),
        "beside prose": Case(beside + prose[half:], timed=slice(half)),
        "beside texts": Case(beside + texts[half:], timed=slice(half)),
        "beside masks": Case(beside + long[half:], masks_only=True, timed=slice(half)),
        "corpus": Case(short),
        "corpus, masks only": Case(short, masks_only=True),
        "one alone": Case(short[:1]),
        "one alone, masks only": Case(short[:1], masks_only=True),
    }


def _guided(schema: dict[str, Any], max_tokens: int, seed: int) -> SamplingParams:
    return _params_of(StructuredOutputsParams(json=schema), max_tokens, seed)


def _params_of(grammar: StructuredOutputsParams, max_tokens: int, seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, structured_outputs=grammar)


def _engine(model_shape: str | None, arguments: dict[str, Any]) -> LLM:
    if model_shape is None:
        return LLM(**arguments)
    made = random_weights(model_shape, arguments)
    tokenizer = synthetic_tokenizer(made["config"].vocab_size)
    return LLM(**{**arguments, **made}, tokenizer=tokenizer)


def _run(llm: LLM, case: Case) -> Run:
    prompts = [[1 + i, *range(2, _PROMPT_LEN + 1)] for i in range(len(case.params))]
    llm.reset_prefix_cache()
    with _masking(only=case.masks_only), _timing_grammars() as grammars:
        start = time.perf_counter()
        outputs = llm.generate(prompts, list(case.params), use_tqdm=False)
        seconds = time.perf_counter() - start
    if failed := [output.error for output in outputs if output.error]:
        raise RuntimeError(f"a request failed: {failed[0]}")
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    tpot = statistics.median(_tpots(outputs[case.timed]))
    return Run(tpot * 1e3, tokens / seconds, grammars.milliseconds)


def _tpots(outputs: Sequence[RequestOutput]) -> list[float]:
    times = [output.metrics.tpot for output in outputs if output.metrics]
    return [seconds for seconds in times if seconds is not None]


def _middle(runs: Sequence[Run]) -> dict[str, float | None]:
    """The medians of a case's runs, and how far these are apart."""
    speeds = [run.tokens_per_s for run in runs]
    grammars = [run.grammar_ms for run in runs if run.grammar_ms is not None]
    return {
        "tpot_ms": statistics.median(run.tpot_ms for run in runs),
        "tokens_per_s": statistics.median(speeds),
        "grammar_ms": statistics.median(grammars) if grammars else None,
        "spread": max(speeds) / min(speeds),
    }


def _ratios(record: dict[str, Any]) -> dict[str, float]:
    def tpot(name: str, other: str) -> float:
        return record[name]["tpot_ms"] / record[other]["tpot_ms"]

    def speed(name: str, other: str) -> float:
        return record[name]["tokens_per_s"] / record[other]["tokens_per_s"]

    return {
        "TPOT, prose / plain": tpot("prose", "plain"),
        "TPOT, texts / plain": tpot("texts", "plain"),
        "TPOT, records, masks only / plain": tpot("records, masks only", "plain"),
        "TPOT of neighbours, beside prose / plain": tpot("beside prose", "plain"),
        "TPOT of neighbours, beside texts / plain": tpot("beside texts", "plain"),
        "TPOT of neighbours, beside masks / plain": tpot("beside masks", "plain"),
        "tokens/s, corpus / masks only": speed("corpus", "corpus, masks only"),
        "tokens/s, one alone / masks only": speed("one alone", "one alone, masks only"),
    }


@contextlib.contextmanager
def _masking(*, only: bool) -> Iterator[None]:
    """Draw forced tokens, too, if masks are all there is to be."""
    fewest = host_dependent.FEWEST_FORCED
    if only:
        host_dependent.FEWEST_FORCED = sys.maxsize
    try:
        yield
    finally:
        host_dependent.FEWEST_FORCED = fewest


@contextlib.contextmanager
def _timing_grammars() -> Iterator[GrammarTime]:
    times, constrain = GrammarTime(), host_dependent.HostDependentRows.constrain

    def timed(self: Any, schedule: Any) -> Any:
        start = time.perf_counter()
        constraints = constrain(self, schedule)
        if constraints.allowed is not None:
            times.seconds.append(time.perf_counter() - start)
        return constraints

    host_dependent.HostDependentRows.constrain = timed
    try:
        yield times
    finally:
        host_dependent.HostDependentRows.constrain = constrain
