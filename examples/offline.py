"""Many prompts at once, each with settings of its own: python examples/offline.py [MODEL]."""

import sys
from collections.abc import Sequence

from jaxinfer import LLM, RequestOutput, SamplingParams

PROMPTS = ("Once upon a time", "One day a bear", "The little fox")


def generate(prompts: Sequence[str] = PROMPTS, model: str | None = None) -> list[RequestOutput]:
    """Complete each prompt, greedily but for the last; without a model, the bundled one does."""
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    drawn = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=24, logprobs=0)
    with LLM(model) as llm:
        return llm.generate(list(prompts), [greedy] * (len(prompts) - 1) + [drawn])


def main() -> None:
    """Print prompts and answers."""
    for output in generate(model=sys.argv[1] if len(sys.argv) > 1 else None):
        (completion,) = output.outputs
        print(f"{output.prompt!r} -> {completion.text!r} ({completion.finish_reason})")


if __name__ == "__main__":
    main()
