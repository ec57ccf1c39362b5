"""The progress bar of a batch of requests."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxinfer.outputs import RequestOutput
from jaxinfer.progress import ProgressBar


def show_progress(
    outputs: Iterable[RequestOutput], count: int, use_tqdm: bool | Callable[..., Any]
) -> None:
    """Go through last outputs as they come; a progress bar shows their number and throughput.

    It is that of answers or, where there are none, of prompts.
    """
    num_tokens = num_read = 0
    make = use_tqdm if callable(use_tqdm) else None
    with ProgressBar(count, "Processed prompts", enabled=True, make=make) as bar:
        for output in outputs:
            num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
            num_read += len(output.prompt_token_ids)
            # Without answers there are prompts that are read alone.
            tokens, kind = (num_tokens, "output") if num_tokens else (num_read, "prompt")
            bar.set_postfix(f"{tokens / (bar.elapsed or 1e-9):.0f} {kind} tok/s")
            bar.update()
