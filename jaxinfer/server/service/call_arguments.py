"""Checks the arguments of a `RemoteLLM` call as an engine in this process would."""

from typing import Any

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.service.description import EngineDescription
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.new_request import NewRequest, wanted_outputs
from jaxinfer.serving.requests.prompts import match_params, split_prompts


class RemoteCallArguments:
    """Makes requests of what callers give."""

    def __init__(
        self,
        description: EngineDescription,
        tokenizer: Tokenizer | None,
        model_config: ModelConfig,
    ) -> None:
        self._defaults = description.default_params
        self._has_priorities = description.config.scheduling_policy != "fcfs"
        self._reader = description.prompt_reader(tokenizer, model_config)
        self._last: tuple[SamplingParams, SamplingParams] | None = None  # a copy, and as checked

    def one(
        self,
        prompt: Any,
        params: SamplingParams | None,
        priority: Any,
        label: str,
        *,
        prefill_only: bool = False,
        answer: AnswerFormat | None = None,
    ) -> NewRequest:
        """The request of a single prompt.

        Raises:
            TypeError: not a prompt, not a `SamplingParams`, or the priority is no integer.
            ValueError: several prompts, one that can't be run, or a priority that is not 0 where
                requests are served first come, first served.
        """
        parts = split_prompts(prompt)
        if len(parts) != 1:
            raise ValueError(f"expected one prompt, got {len(parts)}; make a call for each")
        (given,) = match_params(params, 1, self._defaults)
        own = self._checked(given)
        limit = self._reader.prompt_limit(own)
        (checked,) = self._reader.read_parts(parts, [limit], num_outputs=0 if prefill_only else 1)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an integer, got {priority!r}")
        if priority and not self._has_priorities:
            raise ValueError(
                f"priority is {priority}, but requests are served first come, first served; "
                "start the service with --scheduling-policy fair, or leave it 0"
            )
        return NewRequest(
            prompt=checked,
            params=own,
            kind=wanted_outputs(own),
            prefill_only=prefill_only,
            priority=priority,
            label=label,
            answer=answer,
        )

    def _checked(self, given: SamplingParams) -> SamplingParams:
        """A copy, checked; the same one for the prompts of a call, whose parameters are equal.

        Checks go through all bad words and token ids, and a call may have a thousand prompts.
        """
        if self._last is None or vars(self._last[0]) != vars(given):
            copy = given.clone()
            self._last = copy, self._reader.check_params(copy)
        return self._last[1]
