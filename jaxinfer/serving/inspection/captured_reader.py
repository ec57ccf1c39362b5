"""Reads the captured activations of requests that end, before their blocks are given away."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxinfer.capture import Capture, CapturedTokens
from jaxinfer.outputs import FinishReason
from jaxinfer.serving.programs.inspected_layers import InspectedLayers
from jaxinfer.serving.programs.kinds.read_captured import (
    BLOCKS_A_READ,
    ReadCapturedKey,
    held_activations,
)
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
        self._key = ReadCapturedKey(BLOCKS_A_READ, is_logits)
        self._kept: dict[str, tuple[Captured, int]] = {}

    def keep(self, request: Request) -> None:
        """Copy what the blocks of a request hold that loses them, and may end before it has others.

        So it is while tokens of it are in flight, of which one may be its last.
        """
        wanted = request.new.capture
        if wanted is None or not request.num_in_flight_tokens:
            return
        start, stop = captured_span(request, wanted.tokens, request.num_cached_tokens)
        with self._losses(request):
            values = self._of_positions(request.blocks.table, start, stop)
            self._kept[request.request_id] = Captured(start, values), request.num_cached_tokens

    def read(self, request: Request, reason: FinishReason) -> None:
        """Leave the activations of a request that ends in it, if it asked for any.

        Waits for the steps that are launched. One that ends early gets none.
        """
        wanted, kept = request.new.capture, self._kept.pop(request.request_id, None)
        if wanted is None or reason not in ("stop", "length"):
            return
        table = request.blocks.table
        with self._losses(request):
            if not table and kept is not None:
                wanted.found[request.request_id] = _fed(request, wanted.tokens, *kept)
                return
            fed = num_fed(request, request.num_cached_tokens)
            start, stop = captured_span(request, wanted.tokens, fed)
            found = Captured(start, self._of_positions(table, start, stop))
            wanted.found[request.request_id] = found

    @contextlib.contextmanager
    def _losses(self, request: Request) -> Iterator[None]:
        """Say in the request what its activations were lost by."""
        try:
            yield
        except Exception as error:  # the device's; the request's tokens are there
            logger.warning("the activations of request %s are lost", request.request_id)
            assert request.new.capture is not None
            request.new.capture.lost = f"captured activations are lost: {error}"

    def _of_positions(self, table: Sequence[int], start: int, stop: int) -> dict[Any, np.ndarray]:
        S = self._programs.context.block_size
        # At least one block, so that no token has arrays of the right widths, too.
        first = min(start, max(stop - 1, 0)) // S
        blocks = table[first : -(-stop // S)]
        pieces = [
            self._runner.launches.run(self._gather, blocks[i : i + BLOCKS_A_READ]).result()
            for i in range(0, len(blocks), BLOCKS_A_READ)
        ]
        begin, end = start - first * S, stop - first * S
        return {
            name: np.concatenate(parts)[begin:end].copy()
            for name, *parts in zip(self._names, *pieces, strict=True)
        }

    def _gather(self, blocks: Sequence[int]) -> list[np.ndarray]:
        """What these blocks hold, on the host; in the place of a launch."""
        ids = np.zeros(BLOCKS_A_READ, np.int32)
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


def _fed(request: Request, tokens: CapturedTokens, kept: Captured, num_cached: int) -> Captured:
    """Of activations that were kept, those of tokens that were fed when the request ended."""
    start, stop = captured_span(request, tokens, num_fed(request, num_cached))
    return Captured(start, {name: array[: stop - start] for name, array in kept.values.items()})


def num_fed(request: Request, num_cached: int) -> int:
    """Tokens of a request that ends that were fed; what is in flight behind them does not count.

    Args:
        num_cached: tokens of it that blocks hold, or held.
    """
    # Nothing is behind the last token, so it is not fed, unless it is a prompt's.
    last = 0 if request.new.prefill_only else 1
    return min(request.num_known_tokens - last, num_cached)


def captured_span(request: Request, tokens: CapturedTokens, fed: int) -> tuple[int, int]:
    """The positions whose activations a request gets of those fed: start and stop."""
    prompt = request.num_prompt_tokens
    start = {"prompt": 0, "all": 0, "generated": prompt, "last": prompt - 1}[tokens]
    stop = min(prompt, fed) if tokens in ("prompt", "last") else fed
    return start, max(start, stop)
