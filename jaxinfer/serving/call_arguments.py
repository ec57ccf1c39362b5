"""What a call of the offline API is given, checked and made its own before anything is enqueued."""

from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.inputs import Prompt, match_params
from jaxinfer.serving.loading import LoadedEngine, say


class CallArguments:
    """Reads prompts and sampling parameters for one engine; says once which defaults it uses.

    Args:
        config: says whether anything is shown.
        loaded: has the model's defaults and the checks.
    """

    def __init__(self, config: EngineConfig, loaded: LoadedEngine) -> None:
        self._config = config
        self._defaults = loaded.default_params
        self._generation = loaded.generation
        self._reader = loaded.reader
        self._has_defaults_to_say = bool(loaded.generation.values)

    def one(self, prompt: Any, params: Any) -> tuple[Prompt, SamplingParams]:
        """A single prompt and its parameters.

        Raises:
            TypeError: not a prompt, or not a `SamplingParams`.
            ValueError: several prompts, or as `PromptReader.read` and `params`.
        """
        checked = self._reader.read(prompt)
        if len(checked) != 1:
            raise ValueError(f"expected one prompt, got {len(checked)}; use generate() for several")
        return checked[0], self.params(params, 1)[0]

    def params(self, given: Any, count: int) -> list[SamplingParams]:
        """Parameters for so many prompts: copies, so that later assignments change no request.

        Args:
            given: None for the model's defaults, one for all, or a sequence with one for each.
            count: how many prompts there are.

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
