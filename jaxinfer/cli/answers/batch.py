"""Runs many prompts as one batch and yields their answers in order, each as early as possible."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.cli.answers.answer import Answer
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
