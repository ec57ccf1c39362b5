"""Checks context parallelism on GPUs, and measures what it gains for long prompts and contexts.

python -m scripts.speed.context_parallel --check
python -m scripts.speed.context_parallel --model-shape 8b --prompt 131072 --decode-at 65536

The check compares log-probabilities of texts by the bundled model on one device and on C. The
measurement asks one prompt at a time, of tokens that no prompt before had, and prints seconds to
its first token, and seconds a token behind a context, on one device and on C, and keeps a record.
"""

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import FAILED, OK, end_process, run_command
from jaxinfer.planning.named_shapes import SERVED_SHAPES

if TYPE_CHECKING:
    from jaxinfer import LLM

_TEXT = "Once upon a time there was a little girl who lived near a wood with her grandmother. "
_LENGTHS = (1, 5, 31, 200, 450)
_MOST_MEAN, _MOST = 0.02, 0.5
"""Differences of log-probabilities: bfloat16 rounds sums of another order otherwise."""


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare log-probabilities alone")
    parser.add_argument("--contexts", type=positive_integer, default=2, help="C; default: 2")
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, default="0.6b")
    parser.add_argument("--prompt", type=positive_integer, default=131_072, help="tokens")
    parser.add_argument("--decode-at", type=positive_integer, default=65_536, help="tokens")
    parser.add_argument("--decoded", type=positive_integer, default=64, help="tokens")
    parser.add_argument("--repeats", type=positive_integer, default=3, help="default: 3")
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Check or measure; status 1 where devices disagree."""
    arguments = build_parser().parse_args(argv)
    return run_command("context_parallel", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform({})
    degrees = (1, arguments.contexts)
    if arguments.check:
        one, several = (logprobs_on(degree) for degree in degrees)
        lines, agrees = agreement(one, several)
        print("\n".join(lines), flush=True)
        return OK if agrees else FAILED
    from scripts.measurements.results import RESULTS, save_result

    one, several = (_measured(degree, arguments) for degree in degrees)
    ratios = {name: several[name] / one[name] for name in ("ttft_s", "tpot_s")}
    for name, ratio in ratios.items():
        print(f"{name}: {one[name]:.4f} on 1, {several[name]:.4f} on {degrees[1]}: {ratio:.3f}x")
    sizes = {name: getattr(arguments, name) for name in ("prompt", "decode_at", "decoded")}
    report = {**sizes, "ratios": ratios, "one": one, "several": several}
    report["num_compilations"] = one["num_compilations"] + several["num_compilations"]
    directory = arguments.output_directory or RESULTS
    path = save_result(f"context-parallel-{arguments.model_shape}", report, directory)
    print(f"kept in {path}")
    return FAILED if report["num_compilations"] else OK


def logprobs_on(degree: int) -> list[float]:
    """Log-probabilities of every token of some texts, by the bundled model on so many devices."""
    from jaxinfer import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    with LLM(context_parallel_size=degree, max_num_batched_tokens=256, max_num_seqs=8) as llm:
        print(f"context_parallel_size={degree}: attention by {llm.report.attention_backend}")
        limit = llm.report.max_model_len - 32
        tokenizer = llm.get_tokenizer()
        assert tokenizer is not None
        tokens = tokenizer.encode(_TEXT * 40)
        prompts = [tokens[: min(length, limit)] for length in _LENGTHS]
        # Answers are fed token by token, and then read again as a prompt.
        answers = llm.generate(prompts, params.clone(max_tokens=24, ignore_eos=True, logprobs=0))
        fed = [
            entry.logprob
            for output in answers
            for step in output.outputs[0].logprobs or ()
            for entry in list(step.values())[:1]
        ]
        outputs = llm.generate(prompts, params)
        read = [
            next(iter(entry.values())).logprob
            for output in outputs
            for entry in output.prompt_logprobs or ()
            if entry is not None
        ]
    return fed + read


def agreement(one: Sequence[float], several: Sequence[float]) -> tuple[list[str], bool]:
    """Lines for people, and whether log-probabilities agree as far as bfloat16 does."""
    if len(one) != len(several):
        return [f"{len(one)} log-probabilities on one device, {len(several)} on several"], False
    differences = np.abs(np.asarray(one) - np.asarray(several))
    mean, most = float(differences.mean()), float(differences.max())
    agrees = mean <= _MOST_MEAN and most <= _MOST
    line = f"{len(one)} log-probabilities differ by {mean:.5f} in the mean, {most:.4f} at most"
    return [line, "they agree" if agrees else f"TOO MUCH: {_MOST_MEAN} and {_MOST} allowed"], agrees


def _measured(degree: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians of seconds to the first token, and of seconds a token, of one request at a time."""
    from scripts.speed.report import engine_record

    longest = max(arguments.prompt, arguments.decode_at + arguments.decoded) + 64
    with _engine(arguments.model_shape, degree, longest) as llm:
        print(f"context_parallel_size={degree}: {llm.report}", flush=True)
        rng = np.random.default_rng(0)

        def seconds(prompt: int, count: int) -> float:
            return _seconds(llm, rng.integers(0, 1000, prompt).tolist(), count)

        seconds(arguments.prompt, 1)
        before = llm.num_compilations
        first = [seconds(arguments.prompt, 1) for _ in range(arguments.repeats)]
        steps = []
        for _ in range(arguments.repeats + 1):
            context = rng.integers(0, 1000, arguments.decode_at).tolist()
            _seconds(llm, context, 2)  # its blocks are cached from here on
            short, long = (_seconds(llm, context, n) for n in (2, 2 + arguments.decoded))
            steps.append((long - short) / arguments.decoded)
        record = engine_record(llm, arguments.model_shape)
        record["num_compilations"] = llm.num_compilations - before
    gc.collect()
    print(f"context_parallel_size={degree}: TTFT s {first}, TPOT s {steps}", flush=True)
    medians = {"ttft_s": statistics.median(first), "tpot_s": statistics.median(steps[1:])}
    return {**record, **medians, "all_ttft_s": first, "all_tpot_s": steps[1:]}


def _seconds(llm: "LLM", prompt: list[int], count: int) -> float:
    """How long one request takes."""
    from jaxinfer import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    start = time.perf_counter()
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == count
    return time.perf_counter() - start


def _engine(shape: str, degree: int, longest: int) -> "LLM":
    """An engine of random weights, which takes contexts as long as these."""
    from jaxinfer import LLM
    from jaxinfer.measure.random_weights import random_weights

    options: dict[str, Any] = {
        "context_parallel_size": degree,
        "max_model_len": longest,
        "max_num_seqs": 8,
        "show_progress": False,
    }
    made = random_weights(shape, options)
    config = dataclasses.replace(made["config"], max_position_embeddings=longest)
    return LLM(**options | made | {"config": config})


if __name__ == "__main__":
    end_process(main())
