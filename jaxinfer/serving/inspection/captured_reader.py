"""Reads the captured activations of requests that end, before their blocks are given away."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.capture import Capture, CapturedTokens
from jaxinfer.outputs import FinishReason
from jaxinfer.serving.programs.inspected_layers import InspectedLayers
from jaxinfer.serving.programs.kinds.copy_blocks import BLOCKS_A_COPY
from jaxinfer.serving.programs.kinds.read_captured import ReadCapturedKey, held_activations
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.requests.captured import Captured
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.runner import Runner

logger = logging.getLogger("jaxinfer")


class CapturedReader:
    """Reads what one runner's pages hold of requests, for the engine's thread.

    Args:
        runner: of an engine whose steps capture.
        programs: of the same engine.
        capture: what they do.
    """

    def __init__(self, runner: Runner, programs: Programs, capture: Capture) -> None:
        self._runner = runner
        self._programs = programs
        is_logits = capture.what == "logits"
        loop = programs.context.loop
        assert isinstance(loop, InspectedLayers)
        self._names: Sequence[Any] = ("logits",) if is_logits else loop.captured
        self._key = ReadCapturedKey(BLOCKS_A_COPY, is_logits)

    def read(self, request: Request, reason: FinishReason) -> None:
        """Leave the activations of a request that ends in it, if it asked for any.

        Waits for the steps that are launched. One that ends early gets none.
        """
        wanted = request.new.capture
        if wanted is None or reason not in ("stop", "length"):
            return
        start, stop = captured_span(request, wanted.tokens)
        try:
            found = Captured(start, self._of_positions(request, start, stop))
            wanted.found[request.request_id] = found
        except Exception as error:  # the device's; the request's tokens are there
            logger.warning("the activations of request %s are lost", request.request_id)
            wanted.lost = f"captured activations are lost: {error}"

    def _of_positions(self, request: Request, start: int, stop: int) -> dict[Any, np.ndarray]:
        S = self._programs.context.block_size
        # At least one block, so that no token has arrays of the right widths, too.
        first = min(start, max(stop - 1, 0)) // S
        blocks = request.blocks.table[first : -(-stop // S)]
        pieces = [
            self._runner.launches.run(self._gather, blocks[i : i + BLOCKS_A_COPY]).result()
            for i in range(0, len(blocks), BLOCKS_A_COPY)
        ]
        begin, end = start - first * S, stop - first * S
        return {
            name: np.concatenate(parts)[begin:end].copy()
            for name, *parts in zip(self._names, *pieces, strict=True)
        }

    def _gather(self, blocks: Sequence[int]) -> list[np.ndarray]:
        """What these blocks hold, on the host; in the place of a launch."""
        ids = np.zeros(BLOCKS_A_COPY, np.int32)
        ids[: len(blocks)] = blocks
        launcher, context = self._runner.launcher, self._programs.context
        held = held_activations(launcher.resident.kv, context)
        head = (launcher.resident.head,) if self._key.logits else ()
        placed = upload(ids, self._programs.last_tokens.sharding)
        found = launcher.program(self._key)(*head, held, placed)
        for array in found:
            launcher.await_if_emulated(array)
        count = len(blocks) * context.block_size
        return [np.asarray(array)[:count] for array in found]


def captured_span(request: Request, tokens: CapturedTokens) -> tuple[int, int]:
    """The positions whose activations a request gets: start and stop."""
    prompt = request.num_prompt_tokens
    # The last token is not fed, and what is in flight behind it does not count.
    fed = min(request.num_known_tokens - 1, request.num_cached_tokens)
    start = {"prompt": 0, "all": 0, "generated": prompt, "last": prompt - 1}[tokens]
    stop = min(prompt, fed) if tokens in ("prompt", "last") else fed
    return start, max(start, stop)
