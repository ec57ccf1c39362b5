"""Measures how many tokens a step with drafts gives on held-out prompts of the bundled model."""

from pathlib import Path

from jaxinfer import LLM, SamplingParams
from scripts.bundled_model.rendering import prompt_text
from scripts.evaluation.items.mixture import GENERATORS, held_out_items

_ROWS, _ACCEPTED = "spec_decode_num_drafts", "spec_decode_num_accepted_tokens"
_STORY = "Once upon a time"  # stories have no prompt


def tokens_a_step(
    method: str,
    head: str | Path,
    *,
    count: int,
    num_drafts: int | None = None,
    temperature: float = 0.0,
) -> dict[str, float]:
    """Mean tokens of a row with drafts, by kind of prompt and of "all"; 1 is no accepted draft.

    Args:
        method: of the head.
        head: directory of a draft head of the bundled model, or "bundled".
        count: prompts of each kind.
        num_drafts: most drafts of a row; None is the method's default.
        temperature: of sampling.
    """
    drafts = {"method": method, "model": str(head), "num_speculative_tokens": num_drafts}
    found, totals = {}, [0.0, 0.0]
    with LLM(
        speculative_config=drafts, max_num_seqs=4, max_model_len=1024, show_progress=False
    ) as llm:
        for kind in GENERATORS:
            texts = [prompt_text(item, thinking=False) for item in held_out_items(kind, count)]
            prompts = [text or _STORY for text in texts]
            sampling = SamplingParams(temperature=temperature, max_tokens=96, seed=0)
            before = _counts(llm)
            llm.generate(prompts, sampling, use_tqdm=False)
            rows, accepted = (b - a for a, b in zip(before, _counts(llm), strict=True))
            totals = [totals[0] + rows, totals[1] + accepted]
            found[kind] = 1 + accepted / max(rows, 1)
    return found | {"all": 1 + totals[1] / max(totals[0], 1)}


def _counts(llm: LLM) -> list[float]:
    values = {metric.name.removeprefix("jaxinfer:"): metric for metric in llm.get_metrics()}
    return [getattr(values[name], "value", 0.0) for name in (_ROWS, _ACCEPTED)]
