"""Checks and copies the arguments of a call, and makes requests of them, before it is enqueued."""

from collections.abc import Sequence
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.loaded_adapters import LoadedAdapters
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.pooling.task import ONLY_POOLS
from jaxinfer.serving.requests.new_request import NewRequest, Prompt, wanted_outputs
from jaxinfer.serving.requests.prompts import PromptParts, match_params, split_prompts
from jaxinfer.serving.startup.loading import Loaded, say


class CallArguments:
    """Makes requests from callers' arguments to one engine; says once which defaults it uses.

    Attributes:
        adapters: the loaded ones.
    """

    def __init__(self, config: EngineConfig, loaded: Loaded) -> None:
        self._config = config
        self._only_pools = config.runner == "pooling"
        self._defaults = loaded.default_params
        self._generation = loaded.generation
        self._reader = loaded.reader
        self._has_defaults_to_say = bool(loaded.generation.values)
        self.adapters = LoadedAdapters.of(config, loaded)

    def one(
        self,
        prompt: Any,
        params: Any,
        priority: Any = 0,
        label: str = "",
        *,
        prefill_only: bool = False,
        pooled: bool = False,
        answer: AnswerFormat | None = None,
        lora_request: Any = None,
    ) -> NewRequest:
        """The request of a single prompt.

        Args:
            params: its parameters, or None for the model's defaults.
            prefill_only: nothing is sampled, so that the prompt may fill the model's length.
            pooled: nothing is sampled, and its output has the vector of its last token.
            answer: how its text is read.
            lora_request: a `LoRARequest`, the name of a loaded adapter, or None.

        Raises:
            TypeError: not a prompt, not a `SamplingParams`, or the priority is no integer.
            ValueError: several prompts, or as `several`; an engine for pooling takes prompts that
                are `pooled`.
        """
        parts = split_prompts(prompt)
        if len(parts) != 1:
            raise ValueError(f"expected one prompt, got {len(parts)}; use generate() for several")
        (own,) = self.params(params, 1)
        prefill_only = prefill_only or pooled
        if self._only_pools and (not pooled or own.prompt_logprobs is not None):
            raise ValueError(ONLY_POOLS)
        (checked,) = self._read(parts, [own], num_outputs=0 if prefill_only else 1)
        if lora_request is not None:
            (checked,) = self.adapters.adapted([checked], lora_request)
        return NewRequest(
            prompt=checked,
            params=own,
            kind=wanted_outputs(own),
            prefill_only=prefill_only,
            pooled=pooled,
            priority=self._priority(priority, "priority"),
            label=label,
            answer=answer,
        )

    def several(
        self, prompts: Any, params: Any, priorities: Any = None, lora_request: Any = None
    ) -> list[NewRequest]:
        """The requests of a call; prompts are cut as their parameters say.

        Args:
            params: one for all, one for each, or None for the model's defaults.
            priorities: an integer for all, or one for each; None is 0 for all.
            lora_request: a `LoRARequest`, the name of a loaded adapter, or None, for all; or a
                list with one of these for each.

        Raises:
            TypeError: something has the wrong type; names the first entry that has.
            ValueError: a prompt can't be run, the numbers differ, a priority is not 0 and the
                engine serves first come, first served, or it is for pooling alone.
        """
        if self._only_pools:
            raise ValueError(ONLY_POOLS)
        parts = split_prompts(prompts)
        own = self.params(params, len(parts))
        checked = self._read(parts, own)
        if lora_request is not None:
            checked = self.adapters.adapted(checked, lora_request)
        each = zip(checked, own, self._priorities(priorities, len(parts)), strict=True)
        return [
            NewRequest(prompt=prompt, params=entry, kind=wanted_outputs(entry), priority=priority)
            for prompt, entry, priority in each
        ]

    def _read(
        self,
        parts: Sequence[PromptParts],
        params: Sequence[SamplingParams],
        *,
        num_outputs: int = 1,
    ) -> list[Prompt]:
        """Check prompts, and cut them as their parameters say."""
        limits = [self._reader.prompt_limit(p) for p in params]
        return self._reader.read_parts(parts, limits, num_outputs=num_outputs)

    def _priorities(self, given: Any, count: int) -> list[int]:
        """A priority for each prompt."""
        if given is None:
            return [0] * count
        if type(given) is int:
            return [self._priority(given, "priority")] * count
        if not isinstance(given, Sequence) or isinstance(given, str):
            kind = type(given).__name__
            raise TypeError(
                f"priority must be an integer, or a list with one for each prompt, got {kind}"
            )
        if len(given) != count:
            raise ValueError(
                f"priority has {len(given)} entries for a call of {count}; give one for each prompt"
            )
        return [self._priority(entry, f"priority[{i}]") for i, entry in enumerate(given)]

    def _priority(self, given: Any, name: str) -> int:
        if isinstance(given, bool) or not isinstance(given, int):
            raise TypeError(f"{name} must be an integer, got {given!r}")
        if given != 0 and self._config.scheduling_policy == "fcfs":
            raise ValueError(
                f"{name} is {given}, but requests are served first come, first served; "
                "start the engine with scheduling_policy='priority', or leave it 0"
            )
        return given

    def params(self, given: Any, count: int) -> list[SamplingParams]:
        """Parameters for each of a number of prompts: copies, so that later assignments change no
        request.

        Args:
            given: None for the model's defaults, one for all, or a sequence with one for each.

        Raises:
            TypeError: something is not a `SamplingParams`.
            ValueError: the numbers differ, or a field does not fit the model.
        """
        if given is None and self._has_defaults_to_say:
            self._has_defaults_to_say = False
            say(
                self._config,
                f"Sampling defaults from {self._generation.origin}: {self._defaults.difference()}",
            )
        matched = match_params(given, count, self._defaults)
        own = {id(entry): self._reader.check_params(entry.clone()) for entry in matched}
        return [own[id(entry)] for entry in matched]
