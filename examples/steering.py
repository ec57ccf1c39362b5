"""A direction found in activations, added while the model writes: python examples/steering.py.

Stories set on an island differ from others in the residual stream: a probe of each layer tells them
apart. If the model goes by what the probe reads, it writes other stories when that difference is
added behind one layer. The plot needs matplotlib:

    pip install jaxinfer matplotlib
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer import LLM, Capture, Intervention, ModelConfig, SamplingParams
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS

PLACES = ("desert", "island")
READ = "Once upon a time, in a {place} far away, there lived a {kind} {animal} named {name}. In the"
WRITTEN = "Once upon a time, there was a {kind} {animal} named {name}. {name} lived in the"
HEROES = [
    {"kind": kind, "animal": animal, "name": name}
    for kind in ("shy", "wise", "happy", "polite")
    for animal in ("bear", "fox", "pony")
    for name in ("Mia", "Omar")
]
STRENGTHS = (0.0, 0.25, 0.5, 1.0)


@dataclass
class Effect:
    """What was found: `accuracy` ``[layers]`` of probes, `share` ``[layers, strengths]`` of stories
    that are set on an island."""

    accuracy: np.ndarray
    share: np.ndarray


def steer(layer: int, residual: jax.Array, state: dict[str, jax.Array]) -> jax.Array:
    """The stream behind a layer, moved along the layer's direction as far as its strength says."""
    step = state["strength"][layer] * state["direction"][layer]
    return residual + step.astype(residual.dtype)


def activations(llm: LLM, place: str) -> np.ndarray:
    """The residual stream at the last token of each story's prompt, ``[stories, layers, E]``."""
    prompts = [READ.format(place=place, **hero) for hero in HEROES]
    one = SamplingParams(temperature=0.0, max_tokens=1)
    outputs = llm.generate(prompts, one, use_tqdm=False, capture="last")
    by_layer = [output.outputs[0].captured or {} for output in outputs]
    return np.stack([np.concatenate(list(found.values())) for found in by_layer])


def probe(desert: np.ndarray, island: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The difference of means of one half ``[layers, E]``; its accuracy on the other, by layer."""
    means = [stories[::2].mean(axis=0) for stories in (desert, island)]
    direction, middle = means[1] - means[0], (means[0] + means[1]) / 2
    sides = [((stories[1::2] - middle) * direction).sum(-1) > 0 for stories in (desert, island)]
    return direction, (np.mean(~sides[0], axis=0) + np.mean(sides[1], axis=0)) / 2


def share_of_islands(llm: LLM) -> float:
    """How many of the stories that the model writes under its present state are set in one."""
    prompts = [WRITTEN.format(**hero) for hero in HEROES]
    params = SamplingParams(temperature=0.0, max_tokens=3)
    outputs = llm.generate(prompts, params, use_tqdm=False, intervene=True)
    return float(np.mean([PLACES[1] in output.outputs[0].text for output in outputs]))


def main(figure: Path | None = Path("steering.png")) -> Effect:
    """Probe, steer, print, and plot where matplotlib is installed."""
    directory = BUNDLED_MODELS["bundled"]
    config = ModelConfig.from_directory(directory)
    layers = config.num_hidden_layers
    nothing = {
        "direction": jnp.zeros((layers, config.hidden_size)),
        "strength": jnp.zeros(layers),
    }
    share = np.zeros((layers, len(STRENGTHS)))
    with LLM(
        directory,
        capture=Capture(),
        intervention=Intervention(steer, state=nothing),
        max_model_len=64,
        max_num_seqs=len(HEROES),
        num_decode_steps=1,
        show_progress=False,
    ) as llm:
        direction, accuracy = probe(*(activations(llm, place) for place in PLACES))
        for layer in range(layers):
            for i, strength in enumerate(STRENGTHS):
                alone = jnp.zeros(layers).at[layer].set(strength)
                llm.set_intervention_state({"direction": direction, "strength": alone})
                share[layer, i] = share_of_islands(llm)
            steered = ", ".join(f"{100 * each:.0f} %" for each in share[layer])
            print(f"layer {layer}: probe {100 * accuracy[layer]:.0f} %, islands {steered}")
    effect = Effect(accuracy, share)
    if figure is not None:
        plot(effect, figure)
    return effect


def plot(effect: Effect, figure: Path) -> None:
    """Draw the effect of steering by layer, if there is matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("pip install matplotlib for the plot")
        return
    drawing = Figure(figsize=(6, 4), layout="constrained")
    axes = drawing.subplots()
    layers = np.arange(len(effect.accuracy))
    for i, strength in enumerate(STRENGTHS):
        axes.plot(layers, 100 * effect.share[:, i], marker="o", label=f"strength {strength:g}")
    axes.plot(layers, 100 * effect.accuracy, color="gray", linestyle="--", label="probe")
    axes.set(xlabel="layer", ylabel="stories set on an island, %", xticks=layers, ylim=(-5, 105))
    axes.legend()
    drawing.savefig(figure, dpi=120)
    print(f"saved {figure}")


if __name__ == "__main__":
    main()
