"""An evaluation as lines for people, and as values for JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxinfer.cli.evaluation.texts import Window
from jaxinfer.evaluation.figures import Evaluation
from jaxinfer.profiling.figures import aligned, share_text

_COLUMNS = 6


def evaluation_values(
    evaluation: Evaluation, windows: Sequence[Window], about: Mapping[str, Any]
) -> dict[str, Any]:
    """All figures as JSON-like values: behind those of `about`, overall ones and each text's."""
    texts = [
        {"text": window.where, "first_token": window.first, "start": window.start}
        | {"tokens": len(figures.nll), "nll": float(figures.nll.mean())}
        for window, figures in zip(windows, evaluation.texts, strict=True)
    ]
    values = dict(about) | {"tokens": evaluation.num_tokens, "perplexity": evaluation.perplexity}
    if evaluation.has_reference:
        for index, mean, changed in evaluation.worst_texts(len(texts)):
            texts[index] |= {"mean_kl": mean, "most_changed": windows[index].position(changed)}
        values |= {
            "reference_perplexity": evaluation.reference_perplexity,
            "kl": kl_values(evaluation),
            "same_top_share": evaluation.same_top_share,
            "layer_errors": evaluation.layer_errors,
        }
    return values | {"texts": texts}


def kl_values(evaluation: Evaluation) -> dict[str, float]:
    """Mean, median, 99th percentile and maximum of the tokens' KL, in nats."""
    kl = evaluation.kl
    median, high = np.percentile(kl, [50, 99])
    figures = {"mean": kl.mean(), "median": median, "p99": high, "max": kl.max()}
    return {name: float(value) for name, value in figures.items()}


def report_lines(evaluation: Evaluation, windows: Sequence[Window], worst: int) -> Iterator[str]:
    """The figures for people, with the `worst` most changed texts."""
    count = len(windows)
    yield f"{evaluation.num_tokens:,} predicted tokens in {count} text{'s' * (count > 1)}"
    if not evaluation.has_reference:
        yield f"perplexity {evaluation.perplexity:.4f}"
        return
    ratio = evaluation.perplexity / evaluation.reference_perplexity
    yield (
        f"perplexity {evaluation.perplexity:.4f}, of the reference "
        f"{evaluation.reference_perplexity:.4f} (ratio {ratio:.5f})"
    )
    kl = kl_values(evaluation)
    yield (
        f"KL(reference || model) in nats a token: mean {kl['mean']:.3g}, median "
        f"{kl['median']:.3g}, 99th percentile {kl['p99']:.3g}, maximum {kl['max']:.3g}"
    )
    yield f"same most likely token: {share_text(evaluation.same_top_share, 2)} of tokens"
    yield "\nmost changed texts, and the token of each that changed most"
    rows = [("mean KL", "token", "text")]
    for index, mean, changed in evaluation.worst_texts(worst):
        window = windows[index]
        at = f"{window.where} from token {window.first}" if window.first > 0 else window.where
        rows.append((f"{mean:.3g}", str(window.position(changed)), f"{at}: {window.start!r}"))
    yield from aligned(rows, left=0, last_left=True)
    if evaluation.layer_errors is None:
        yield "\nlayers are not compared: the models' are not as many, or not as wide"
        return
    yield "\nrelative error of the residual stream behind each layer"
    cells = [f"{i:4}: {error:<9.3g}" for i, error in enumerate(evaluation.layer_errors)]
    for start in range(0, len(cells), _COLUMNS):
        yield "".join(cells[start : start + _COLUMNS]).rstrip()
