"""Runs many prompts as one batch: their answers in order, each as early as possible; statistics."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.statistics import BatchStatistics, Stopwatch, peak_memory_bytes
from jaxinfer.cli.prompts import PromptLine

if TYPE_CHECKING:
    from jaxinfer import LLM, SamplingParams


def answer_all(
    llm: "LLM",
    lines: Sequence[PromptLine],
    prompts: Sequence[Any],
    params: Sequence["SamplingParams"],
) -> Iterator[Answer]:
    """Yield the answer to each line, in order, once it and all earlier ones have ended.

    Args:
        llm: the engine.
        lines: the prompts with their names.
        prompts: the same prompts as `LLM.add_request` takes them.
        params: sampling parameters of each.

    Raises:
        ValueError: a prompt or its sampling is refused; names file and line. Nothing has been run.
    """
    from jaxinfer import RequestOutputKind

    for i, (line, prompt, entry) in enumerate(zip(lines, prompts, params, strict=True)):
        try:
            llm.add_request(str(i), prompt, entry.clone(output_kind=RequestOutputKind.FINAL_ONLY))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{line.where}: {error}") from None
    ended: dict[int, Answer] = {}
    for i in range(len(lines)):
        while i not in ended:
            for output in llm.step():
                answer = ended[int(output.request_id)] = Answer()
                answer.extend(output)
        yield ended.pop(i)


def batch_statistics(answers: Sequence[Answer], watch: Stopwatch) -> BatchStatistics:
    """Statistics of requests that were submitted together, from their own clocks."""
    metrics = [answer.metrics for answer in answers if answer.metrics is not None]
    start = min((metric.arrival_time for metric in metrics), default=0.0)
    firsts = [metric.first_token_time for metric in metrics if metric.first_token_time is not None]
    ends = [metric.finished_time for metric in metrics if metric.finished_time is not None]
    return BatchStatistics(
        num_prompts=len(answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        generation_tokens=sum(len(answer.token_ids) for answer in answers),
        first_token_s=min(firsts, default=start) - start,
        total_s=max(ends, default=start) - start,
        num_cut=sum(answer.finish_reason == "length" for answer in answers),
        num_compilations=watch.num_compilations(),
        compile_s=watch.compile_s(),
        peak_memory_bytes=peak_memory_bytes(),
    )
