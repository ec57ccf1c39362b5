"""Stands in for LLM where a test is about a command: it answers from a script, at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxinfer.outputs import CompletionOutput, RequestMetrics, RequestOutput
from jaxinfer.sampling_params import SamplingParams


class FakeTokenizer:
    """One token per character."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, enable_thinking: bool | None = None
    ) -> str:
        turns = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return turns + ("<think>" if enable_thinking else "")


class FakeLLM:
    """Streams the pieces that `reply` makes of a prompt.

    Every request is recorded in `requests` as (prompt text, params), what the constructor was
    given in `arguments`, and how many answers were left early in `aborted`.
    """

    def __init__(self, reply: Callable[[str], list[str]], **arguments: Any) -> None:
        self.reply, self.arguments = reply, arguments
        self.tokenizer = FakeTokenizer()
        self.max_model_len = 1000
        self.num_compilations = 0
        self.requests: list[tuple[str, SamplingParams]] = []
        self.aborted = 0
        self.closed = False
        self.follows = False

    def __enter__(self) -> "FakeLLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.6)

    def stream(self, prompt: Any, params: SamplingParams) -> Iterator[RequestOutput]:
        text = "".join(map(chr, prompt["prompt_token_ids"]))
        self.requests.append((text, params))
        self.num_compilations += 1
        pieces = self.reply(text)
        try:
            for i, piece in enumerate(pieces):
                reason = "stop" if i == len(pieces) - 1 else None
                yield _output(text, piece, reason)
        except (GeneratorExit, KeyboardInterrupt):
            self.aborted += 1
            raise

    def generate(
        self, prompts: list[Any], params: SamplingParams, use_tqdm: bool
    ) -> list[RequestOutput]:
        return [next(self._whole(prompt, params)) for prompt in prompts]

    def _whole(self, prompt: Any, params: SamplingParams) -> Iterator[RequestOutput]:
        text = "".join(map(chr, prompt["prompt_token_ids"]))
        self.requests.append((text, params))
        yield _output(text, "".join(self.reply(text)), "stop")


def _output(prompt: str, text: str, reason: Any) -> RequestOutput:
    return RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=[ord(character) for character in prompt],
        outputs=[CompletionOutput(0, text, [ord(c) for c in text], finish_reason=reason)],
        finished=reason is not None,
        metrics=RequestMetrics(0.0, 1.0, 2.0, 3.0, num_generated_tokens=len(text)),
    )
