"""An engine's LoRA adapters: loaded, replaced and forgotten while requests run."""

import asyncio
from collections.abc import Callable
from typing import Any

from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.serving.driver.pauses import InFlightPolicy, check_in_flight
from jaxinfer.serving.handle import Handle


class Adapters:
    """What `LLM.lora` and `AsyncLLM.lora` are.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def load(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
    ) -> None:
        """Load a LoRA adapter, for requests to name; nothing compiles.

        Args:
            name: of no loaded one.
            source: a directory as PEFT saves it; or a tree of the matrices alone, of arrays of any
                kind, with PEFT's names (``lora_A`` of ``[r, in]``, ``lora_B`` of ``[out, r]``) or
                those of tunix and qwix (``w_lora_a``, ``w_lora_b``). It is copied.
            scale: what the product of a tree's matrices is multiplied by, alpha / r; None is 1.
            mapping: the sources of PEFT's names in a tree with names of its own, such as
                ``{"model.layers.{layer}.self_attn.q_proj.lora_A": "blocks.{layer}.q.down"}``; for
                the projections that it adapts alone.

        Raises:
            TypeError, ValueError, ModelLoadError: it doesn't fit the model or `max_lora_rank`, has
                what is not supported, or the name is taken; one line. Nothing has changed.
        """
        self._handle.check_open()
        self._handle.arguments.adapters.load(name, source, scale, mapping, replaces=False)

    def update(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
        in_flight: InFlightPolicy = "keep",
    ) -> None:
        """Replace a loaded adapter, as after a trainer's step.

        Cached blocks of the earlier version are not reused.

        Args:
            name: of a loaded one.
            source: as of `load`, with `scale` and `mapping`.
            in_flight: requests of the adapter that the engine has go on with the version that they
                began with ("keep"), end before this returns ("wait"), or end at once with the
                reason "abort". Requests of others go on; with "wait", new requests and
                cancellations wait. A stream that was made but not begun, a request whose grammar
                is still compiled and a beam search keep their version.

        Raises:
            TypeError, ValueError, ModelLoadError: as `load`; or none of that name is loaded, or the
                policy is none. Nothing has changed.
            RuntimeError: with "wait", the engine is paused; the adapter is replaced nevertheless.
        """
        settle = self._replace(name, source, scale, mapping, in_flight)
        if settle is not None:
            self._handle.driver.call(settle)

    def unload(self, name: str) -> None:
        """Forget a loaded adapter; requests that were made before end with it.

        Raises:
            AdapterNotFoundError: none of that name is loaded.
        """
        self._handle.check_open()
        self._handle.arguments.adapters.unload(name)

    async def load_async(self, name: str, source: Any, **options: Any) -> None:
        """`load`, without blocking the event loop."""
        await asyncio.to_thread(self.load, name, source, **options)

    async def update_async(
        self,
        name: str,
        source: Any,
        *,
        scale: float | None = None,
        mapping: ParamsMapping | None = None,
        in_flight: InFlightPolicy = "keep",
    ) -> None:
        """`update`, without blocking the event loop."""
        settle = await asyncio.to_thread(self._replace, name, source, scale, mapping, in_flight)
        if settle is not None:
            await self._handle.driver.call_async(settle)

    def _replace(
        self,
        name: str,
        source: Any,
        scale: float | None,
        mapping: ParamsMapping | None,
        in_flight: InFlightPolicy,
    ) -> Callable[[], None] | None:
        """Replace an adapter; what is then to be done in the engine's thread, if anything is."""
        check_in_flight(in_flight)
        self._handle.check_open()
        adapters, pauses = self._handle.arguments.adapters, self._handle.driver.pauses
        adapter = adapters.load(name, source, scale, mapping, replaces=True)
        return None if in_flight == "keep" else lambda: pauses.settle_earlier(adapter, in_flight)
