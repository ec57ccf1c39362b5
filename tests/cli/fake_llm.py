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
    given in `arguments`, the adapter of each request in `adapters`, and how many answers were left
    early in `aborted`.
    """

    def __init__(self, reply: Callable[[str], list[str]], **arguments: Any) -> None:
        self.reply, self.arguments = reply, arguments
        self.tokenizer = FakeTokenizer()
        self.max_model_len = 1000
        self.num_compilations = 0
        self.compile_seconds = 0.0
        self.requests: list[tuple[str, SamplingParams]] = []
        self.adapters: list[Any] = []
        self.waiting: list[tuple[str, str]] = []
        self.aborted = 0
        self.closed = False
        self.follows = False

    def __enter__(self) -> "FakeLLM":
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.6)

    def stream(
        self, prompt: Any, params: SamplingParams, lora_request: Any = None
    ) -> Iterator[RequestOutput]:
        text = _text(prompt)
        self.requests.append((text, params))
        self.adapters.append(lora_request)
        self.num_compilations += 1
        self.compile_seconds += 0.25
        pieces = self.reply(text)
        written = 0
        try:
            for i, piece in enumerate(pieces):
                piece = piece[: (params.max_tokens or 1000) - written]
                written += len(piece)
                if written == params.max_tokens:
                    yield _output(text, piece, "length")
                    return
                yield _output(text, piece, "stop" if i == len(pieces) - 1 else None)
        except (GeneratorExit, KeyboardInterrupt):
            self.aborted += 1
            raise

    def add_request(
        self, request_id: str, prompt: Any, params: SamplingParams, lora_request: Any = None
    ) -> None:
        text = _text(prompt)
        if len(text) > self.max_model_len:
            raise ValueError(f"prompt has {len(text)} tokens")
        self.requests.append((text, params))
        self.adapters.append(lora_request)
        self.waiting.append((request_id, text))

    def step(self) -> list[RequestOutput]:
        """Answer the last request that waits."""
        request_id, text = self.waiting.pop()
        try:
            output = _output(text, "".join(self.reply(text)), "stop")
        except ArithmeticError as error:  # one request's fault, as the engine contains it
            output = _output(text, "", "error")
            output.error = str(error)
        output.request_id = request_id
        return [output]


def _text(prompt: Any) -> str:
    return prompt["prompt"] if "prompt" in prompt else "".join(map(chr, prompt["prompt_token_ids"]))


def _output(prompt: str, text: str, reason: Any) -> RequestOutput:
    return RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=[ord(character) for character in prompt],
        outputs=[CompletionOutput(0, text, [ord(c) for c in text], finish_reason=reason)],
        finished=reason is not None,
        metrics=RequestMetrics(0.0, 1.0, 2.0, 3.0, num_generated_tokens=len(text)),
    )
