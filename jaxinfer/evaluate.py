"""`jaxinfer evaluate`: a model's perplexity, its distance from another, the use of its experts."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxinfer.cli.engine import speaking_of_flags
from jaxinfer.cli.flags.parser import CommandParser, positive_integer
from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.config import QUANTIZATION_SCHEMES
from jaxinfer.model.quantized.quantization import with_scheme

if TYPE_CHECKING:
    import argparse

    from jaxinfer.cli.evaluation.texts import Window
    from jaxinfer.evaluation import Evaluation, Model
    from jaxinfer.expert_statistics import ExpertStatistics
    from jaxinfer.model.config import ModelConfig

_MAX_TOKENS, _WORST = 512, 3
_FLAGS = {"quantization": "--quantization"}
_INDEX = re.compile(r"texts\[(\d+)\]")
_ADVICE = (
    "both models are on one device; lower --max-tokens, take a smaller --dtype, or a larger device"
)
_EXAMPLES = """examples:
  jaxinfer evaluate ./Qwen3-8B-w8a16 --against Qwen/Qwen3-8B --text wiki.txt
  jaxinfer evaluate ./Qwen3-8B-w8a16 --against Qwen/Qwen3-8B --text chats.jsonl wiki.txt \\
    --max-texts 64 --plot layers.svg --json figures.json
  jaxinfer evaluate Qwen/Qwen3-8B --quantization fp8 --against Qwen/Qwen3-8B --text wiki.txt
  jaxinfer evaluate Qwen/Qwen3-0.6B --text wiki.txt
  jaxinfer evaluate Qwen/Qwen3-30B-A3B --experts --text wiki.txt --plot experts.svg"""


def build_parser() -> CommandParser:
    """The flags of `jaxinfer evaluate`."""
    parser = CommandParser(
        "evaluate",
        "Measure a model's perplexity over given texts and, against a reference with the same "
        "vocabulary, KL divergence, equal likeliest tokens and the error of each layer; or how its "
        "experts are used. Both models are held at once, on the default device.",
        _EXAMPLES,
    )
    name = 'directory or hub id, or a bundled model: "bundled", or "bundled-experts" (with experts)'
    parser.add_argument("model", help=f"the model to judge: {name}")
    parser.add_argument(
        "--against",
        metavar="REFERENCE",
        help="the model that it is compared with (default: none, perplexity alone)",
    )
    parser.add_argument(
        "--experts",
        action="store_true",
        help="tell how the tokens are spread over the model's experts, layer by layer",
    )
    parser.add_argument(
        "--quantization",
        choices=QUANTIZATION_SCHEMES,
        metavar="SCHEME",
        help="quantize the model's plain weights, not the reference's, while they are loaded: "
        f"{', '.join(QUANTIZATION_SCHEMES)} (default: none)",
    )
    parser.add_argument(
        "--text",
        required=True,
        nargs="+",
        action="extend",
        metavar="FILE",
        help='files of text: .jsonl with a string or {"text": ...} or {"prompt": ...} a line; any '
        'other is one text ("-" reads standard input) (default: none; it must be given)',
    )
    parser.add_argument(
        "--max-tokens",
        type=positive_integer,
        metavar="N",
        help="tokens at once; longer texts are cut into windows of so many, each read without what "
        f"stands before it (default: {_MAX_TOKENS}, or the models' context)",
    )
    parser.add_argument(
        "--max-texts",
        type=positive_integer,
        metavar="N",
        help="read only the first N windows of the texts (default: all)",
    )
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16"],
        default="auto",
        help="to compute in (default: auto, each model's own)",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to a file (default: no)")
    parser.add_argument(
        "--plot",
        metavar="FILE.svg",
        help="write a chart of the layers' errors to a file, with --experts a heat map of "
        "layers and experts (default: no)",
    )
    parser.add_argument(
        "--worst",
        type=positive_integer,
        metavar="K",
        help=f"texts to list, the most changed first (default: {_WORST})",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bars")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.experts and arguments.against is not None:
        parser.error("--experts is about one model; leave --against out")
    for flag in ("plot", "worst"):
        shows_experts = arguments.experts and flag == "plot"
        if arguments.against is None and getattr(arguments, flag) is not None and not shows_experts:
            parser.error(f"--{flag} compares two models; give the other one as --against")
    if arguments.plot is not None and Path(arguments.plot).suffix != ".svg":
        parser.error(f"--plot must end in .svg, got {arguments.plot}")
    return run_command("evaluate", lambda: _run(arguments), memory_advice=_ADVICE)


def _run(arguments: "argparse.Namespace") -> int:
    for file in filter(None, (arguments.json, arguments.plot)):
        if Path(file).is_dir():
            raise ValueError(f"{file}: is a directory; give a file to write")
        if not Path(file).parent.is_dir():
            raise ValueError(f"{file}: can't be written: {Path(file).parent} is no directory")
    names = [name for name in (arguments.model, arguments.against) if name is not None]
    directories = _directories(names)
    configs = _configs(directories)
    if arguments.experts:
        _check_experts(arguments.model, configs[0])
    if arguments.quantization is not None:
        with speaking_of_flags(_FLAGS):
            configs[0] = with_scheme(configs[0], arguments.quantization)
    windows, max_tokens = _windows(arguments, directories, configs)
    # With factors for texts of this length, where a model has several.
    configs = [config.for_context(max_tokens) for config in configs]
    dtypes = [arguments.dtype if arguments.dtype != "auto" else each.dtype for each in configs]
    evaluation, experts = _evaluate(directories, configs, dtypes, windows, arguments)
    # Behind start_platform, since it imports JAX.
    from jaxinfer.cli.evaluation.experts import expert_lines, expert_values
    from jaxinfer.cli.evaluation.report import evaluation_values, report_lines

    about = {"model": arguments.model, "reference": arguments.against, "dtypes": dtypes}
    for what, name, dtype in zip(("model", "reference"), names, dtypes, strict=False):
        print(f"{what} {name}, computed in {dtype}")
    print("\n".join(report_lines(evaluation, windows, arguments.worst or _WORST)))
    if experts is not None:
        print("\n".join(expert_lines(experts)))
    if arguments.json is not None:
        values = evaluation_values(evaluation, windows, about | {"max_tokens": max_tokens})
        if experts is not None:
            values["experts"] = expert_values(experts)
        Path(arguments.json).write_text(
            json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )
    if arguments.plot is not None:
        _plot(arguments, evaluation, experts)
    return OK


def _directories(names: Sequence[str]) -> list[Path]:
    from jaxinfer.model.checkpoint.hub import resolve_model

    return [resolve_model(name) for name in names]


def _configs(directories: Sequence[Path]) -> "list[ModelConfig]":
    from jaxinfer.errors import ModelLoadError
    from jaxinfer.model.config import ModelConfig

    configs = [ModelConfig.from_directory(each) for each in directories]
    first, *others = [each.vocab_size for each in configs]
    if others and others[0] != first:
        raise ModelLoadError(
            f"{directories[0]}: vocab_size is {first}, {directories[1]} has {others[0]}; compare "
            "models with one vocabulary"
        )
    return configs


def _check_experts(name: str, config: "ModelConfig") -> None:
    if config.experts is None or not config.experts.layers(config.num_hidden_layers):
        raise ValueError(
            f"{name} has no experts (model_type {config.model_type}); leave --experts out"
        )


def _windows(
    arguments: "argparse.Namespace", directories: Sequence[Path], configs: "list[ModelConfig]"
) -> "tuple[list[Window], int]":
    """The windows of all texts, and the most tokens that one may have."""
    from jaxinfer.cli.evaluation.texts import check_ids, read_windows
    from jaxinfer.model.text.tokenizer import Tokenizer

    context = min(config.max_context_length for config in configs)
    max_tokens = arguments.max_tokens or min(_MAX_TOKENS, context)
    if not 2 <= max_tokens <= context:
        raise ValueError(
            f"--max-tokens must be from 2 to {context}, the models' context, got {max_tokens}"
        )
    tokenizers = [Tokenizer.from_directory(each) for each in directories]
    windows = read_windows(
        arguments.text, tokenizers[0], tokenizers[-1], max_tokens, arguments.max_texts
    )
    check_ids(windows, directories[0], configs[0].vocab_size)
    return windows, max_tokens


def _evaluate(
    directories: Sequence[Path],
    configs: "list[ModelConfig]",
    dtypes: Sequence[str],
    windows: "Sequence[Window]",
    arguments: "argparse.Namespace",
) -> "tuple[Evaluation, ExpertStatistics | None]":
    """Load the models, and run them over the windows; with `--experts` a second time."""
    from jaxinfer.cli.platform import start_platform

    start_platform()
    import jax

    from jaxinfer.evaluation import compare, expert_use
    from jaxinfer.progress import ProgressBar
    from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache

    shown = not arguments.quiet
    # XLA can't write a sort that it compiled for a CPU, and tokens are sorted by their experts.
    sorts = jax.default_backend() == "cpu" and any(config.experts for config in configs)
    with persistent_cache("" if sorts else None):
        with speaking_of_flags(_FLAGS):
            models = [
                _load(*each, shown=shown) for each in zip(directories, configs, dtypes, strict=True)
            ]
        reference = models[1] if len(models) == 2 else None
        texts = [window.token_ids for window in windows]
        with ProgressBar(len(texts), "Evaluating", enabled=shown, unit="text") as bar:
            try:
                evaluation = compare(models[0], reference, texts, bar.update)
            except ValueError as error:
                named = _INDEX.sub(lambda found: windows[int(found[1])].where, str(error))
                raise ValueError(named) from None
        if not arguments.experts:
            return evaluation, None
        with ProgressBar(len(texts), "Counting tokens of experts", enabled=shown) as bar:
            return evaluation, expert_use(models[0], texts, bar.update)


def _load(directory: Path, config: "ModelConfig", dtype: str, *, shown: bool) -> "Model":
    from jaxinfer.evaluation import Model
    from jaxinfer.model.checkpoint.weights import load_params
    from jaxinfer.progress import ProgressBar

    with ProgressBar(None, "Loading", enabled=shown, unit="B", unit_scale=True) as bar:
        return Model(config, load_params(directory, config, dtype, progress=bar.advance_to))


def _plot(
    arguments: "argparse.Namespace", evaluation: "Evaluation", experts: "ExpertStatistics | None"
) -> None:
    from jaxinfer.evaluation.chart import layer_chart
    from jaxinfer.evaluation.heat_map import heat_map

    if experts is not None:
        title = f"Experts of {Path(arguments.model).name}"
        Path(arguments.plot).write_text(heat_map(experts, title), "utf-8")
        return
    if evaluation.layer_errors is None:
        raise ValueError(
            f"{arguments.plot}: not written, since the models' layers can't be compared"
        )
    title = f"{Path(arguments.model).name} against {Path(arguments.against).name}"
    Path(arguments.plot).write_text(layer_chart(evaluation.layer_errors, title), "utf-8")


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
