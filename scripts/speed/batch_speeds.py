"""Times prefill and decoding over batch sizes and prompt lengths, on one engine."""

import dataclasses
import random
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jaxinfer import LLM, RequestOutput, SamplingParams


class Run(NamedTuple):
    """Requests that ran to their ends.

    Attributes:
        outputs: in the order of the prompts.
        seconds: from submission to the last token.
        num_compilations: programs compiled within them; a figure counts only when 0.
    """

    outputs: "Sequence[RequestOutput]"
    seconds: float
    num_compilations: int


def timed_run(
    llm: "LLM",
    prompts: Sequence[Sequence[int]],
    params: "Sequence[SamplingParams]",
    **options: Any,
) -> Run:
    """Generate and time it.

    Args:
        llm: the engine.
        prompts: token ids, all at once.
        params: of each prompt, with `ignore_eos`.
        options: further arguments of `LLM.generate`.

    Raises:
        RuntimeError: the engine did not write exactly the tokens asked for.
    """
    compiled, start = llm.num_compilations, time.perf_counter()
    outputs = llm.generate([list(ids) for ids in prompts], list(params), use_tqdm=False, **options)
    seconds = time.perf_counter() - start
    asked = sum((each.max_tokens or 0) * each.n for each in params)
    written = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    if written != asked:
        raise RuntimeError(f"{asked} tokens were asked for, {written} written")
    return Run(outputs, seconds, llm.num_compilations - compiled)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """Prefill and decode speed at one batch size and prompt length, medians of the repeats.

    Attributes:
        rows: sequences at once.
        prompt_tokens: length of each prompt.
        decode_steps: steps that `decode_step_s` is the mean of.
        prefill_s: seconds to read all prompts and write one token each.
        decode_step_s: seconds of one decode step.
        spread: largest divided by smallest `prefill_s` of the repeats.
        num_compilations: programs compiled while it was measured.
    """

    rows: int
    prompt_tokens: int
    decode_steps: int
    prefill_s: float
    decode_step_s: float
    spread: float
    num_compilations: int

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens a second, over all rows."""
        return self.rows * self.prompt_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens a second, over all rows."""
        return self.rows / self.decode_step_s


def fitting_arguments(
    batch_sizes: Sequence[int], prompt_lengths: Sequence[int], decode_steps: int
) -> dict[str, Any]:
    """Engine arguments that hold the largest batch, and compile its own shapes and no others."""
    return {
        "compile_ahead": False,
        "max_num_seqs": max(batch_sizes),
        "max_model_len": max(prompt_lengths) + decode_steps + 1,
    }


def measure_speeds(
    llm: "LLM",
    batch_sizes: Sequence[int],
    prompt_lengths: Sequence[int],
    *,
    decode_steps: int,
    repeats: int,
) -> list[Speed]:
    """Measure every batch size with every prompt length.

    Args:
        llm: an engine of `fitting_arguments`.
        batch_sizes: sequences at once.
        prompt_lengths: tokens of each prompt.
        decode_steps: steps that decoding is timed over.
        repeats: counted runs of each; one that is not counted goes first and compiles its shapes.
    """
    return [
        measure_speed(
            llm, rows=rows, prompt_tokens=length, decode_steps=decode_steps, repeats=repeats
        )
        for length in prompt_lengths
        for rows in batch_sizes
    ]


def measure_speed(
    llm: "LLM", *, rows: int, prompt_tokens: int, decode_steps: int, repeats: int, **options: Any
) -> Speed:
    """Time prompts with one output each, and with `decode_steps` more; the difference is decoding.

    Each repeat of each size has its own token ids; a repeat that is not counted goes first and
    compiles the shapes. `options` are further arguments of `LLM.generate`.
    """
    pairs: list[tuple[Run, Run]] = []
    for repeat in range(repeats + 1):
        short, long = (
            _run(llm, rows, prompt_tokens, repeat, tokens, **options)
            for tokens in (1, 1 + decode_steps)
        )
        pairs.append((short, long))
    shorts, longs = zip(*pairs[1:], strict=True)
    prefills = [run.seconds for run in shorts]
    prefill_s = statistics.median(prefills)
    total_s = statistics.median(run.seconds for run in longs)
    return Speed(
        rows=rows,
        prompt_tokens=prompt_tokens,
        decode_steps=decode_steps,
        prefill_s=prefill_s,
        # Noise can make a tiny difference negative on a busy machine; a step is never free.
        decode_step_s=max(total_s - prefill_s, 1e-9) / decode_steps,
        spread=max(prefills) / min(prefills),
        num_compilations=sum(run.num_compilations for pair in pairs[1:] for run in pair),
    )


def _run(
    llm: "LLM", rows: int, prompt_tokens: int, repeat: int, max_tokens: int, **options: Any
) -> Run:
    """Run prompts of equal length that differ in every token, also from those of other runs.

    Another batch size must not find this one's prompts cached, or its steps would change shape as
    they are evicted.
    """
    from jaxinfer import SamplingParams

    source = random.Random(f"{rows} {prompt_tokens} {repeat} {max_tokens}")
    size = llm.model_config.vocab_size
    prompts = [[source.randrange(size) for _ in range(prompt_tokens)] for _ in range(rows)]
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False
    )
    run = timed_run(llm, prompts, [params] * rows, **options)
    if cached := sum(output.num_cached_tokens for output in run.outputs):
        raise RuntimeError(
            f"{cached:,} of {rows * prompt_tokens:,} prompt tokens came from the prefix cache, "
            "which should be none; measure on an engine that has seen no other prompts"
        )
    return run
