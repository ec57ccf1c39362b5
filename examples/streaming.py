"""Two answers as they are written, from asyncio: python examples/streaming.py [MODEL]."""

import asyncio
import sys

from jaxinfer import AsyncLLM, RequestOutputKind, SamplingParams


async def write(llm: AsyncLLM, prompt: str) -> list[str]:
    """Print and return the pieces of an answer, each with the prompt's first word before it."""
    pieces: list[str] = []
    params = SamplingParams(max_tokens=16, seed=1, output_kind=RequestOutputKind.DELTA)
    async for output in llm.generate(prompt, params, request_id=prompt):
        pieces.append(output.outputs[0].text)
        print(f"{prompt.split()[0]}: {pieces[-1]!r}", flush=True)
    return pieces


async def main(model: str | None = None) -> list[list[str]]:
    """Write both at once; each step of the engine serves both."""
    async with AsyncLLM(model) as llm:
        prompts = ("Once upon a time", "Hello, fox")
        return await asyncio.gather(*(write(llm, prompt) for prompt in prompts))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
