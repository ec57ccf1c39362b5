"""Measures JaxinferRollout beside tunix's own rollout, on the bundled model; kept as JSON.

In the environment of scripts/tunix/env.sh: python -m scripts.tunix.benchmark
"""

import argparse
import importlib.metadata
import itertools
import statistics
import time
from typing import Any

from scripts.measurements.results import save_result
from tests.integrations import tunix_run

NUM_PROMPTS, NUM_GENERATIONS, MAX_TOKENS = 4, 16, 96
_SEQUENCES = NUM_PROMPTS * NUM_GENERATIONS


def measure(repeats: int) -> dict[str, Any]:
    """Both engines in turn: rollouts alone, then steps of GRPO."""
    from jaxinfer.integrations.tunix import JaxinferRollout

    engines = {"jaxinfer": JaxinferRollout, "vanilla": "vanilla"}
    learners = {name: _learner(engine, repeats + 2) for name, engine in engines.items()}
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    for repeat in range(repeats + 1):
        for name, learner in learners.items():
            speed = _tokens_per_s(learner.rl_cluster)
            if repeat:  # the first one compiles
                speeds[name].append(speed)
    steps = {name: _steps_s(learner, repeats) for name, learner in learners.items()}
    learners["jaxinfer"].rl_cluster.rollout.close()
    return {
        "sequences": _SEQUENCES,
        "max_tokens": MAX_TOKENS,
        "repeats": repeats,
        "rollout_tokens_per_s": speeds["jaxinfer"],
        "vanilla_rollout_tokens_per_s": speeds["vanilla"],
        "rollout_ratio": _ratio(speeds["jaxinfer"], speeds["vanilla"]),
        "grpo_step_s": steps["jaxinfer"],
        "vanilla_grpo_step_s": steps["vanilla"],
        "grpo_step_ratio": _ratio(steps["vanilla"], steps["jaxinfer"]),
        "tunix_versions": {
            name: importlib.metadata.version(name)
            for name in ("google-tunix", "qwix", "transformers", "optax")
        },
    }


def _learner(engine: Any, num_steps: int) -> Any:
    return tunix_run.make_learner(
        engine,
        num_steps,
        NUM_PROMPTS,
        NUM_GENERATIONS,
        max_tokens_to_generate=MAX_TOKENS,
        kv_cache_size=128,
    )


def _tokens_per_s(cluster: Any) -> float:
    prompts = [p for p in tunix_run.PROMPTS for _ in range(NUM_GENERATIONS)]
    start = time.perf_counter()
    output = cluster.generate(prompts)
    return sum(map(len, output.tokens)) / (time.perf_counter() - start)


def _steps_s(learner: Any, repeats: int) -> list[float]:
    """Seconds between the beginnings of rollouts, a step each; the first step compiles."""
    cluster, starts = learner.rl_cluster, []
    generate = cluster.generate

    def timed(*args: Any, **keywords: Any) -> Any:
        starts.append(time.perf_counter())
        return generate(*args, **keywords)

    cluster.generate = timed
    learner.train(tunix_run.batches(repeats + 2, NUM_PROMPTS))
    return [after - before for before, after in itertools.pairwise(starts)][1:]


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(above) / statistics.median(below)


def main() -> None:
    """Measure, say the ratios, keep the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tunix_run.third_party_warnings():
        report = measure(arguments.repeats)
    for name in ("rollout", "grpo_step"):
        print(f"{name}: {report[f'{name}_ratio']:.2f} times tunix's vanilla rollout")
    print(f"kept in {save_result('tunix', report)}")


if __name__ == "__main__":
    main()
