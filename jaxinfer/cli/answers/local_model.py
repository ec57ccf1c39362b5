"""An engine of this process as the model of a command."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxinfer.cli.answers.answer import Answer, Piece
from jaxinfer.cli.answers.statistics import Stopwatch
from jaxinfer.cli.prompts import PromptLine
from jaxinfer.serving.compile.compile_notice import no_compile_notices

if TYPE_CHECKING:
    from jaxinfer import LLM, SamplingParams, Tokenizer
    from jaxinfer.outputs import RequestOutput


class LocalRequest(NamedTuple):
    """A request for `LLM`; `inside` is True where the prompt has opened the thinking."""

    prompt: dict[str, Any]
    params: "SamplingParams"
    inside: bool = False


class LocalModel:
    """Answers prompts with an engine in this process.

    Args:
        llm: the engine.
        adapter: directory of a LoRA adapter for all requests; None is the model as it is.
    """

    when_stopped = "; work that the engine has begun ends before the next answer begins"

    def __init__(self, llm: "LLM", adapter: str | None = None) -> None:
        from jaxinfer import LoRARequest

        self._llm = llm
        named = None if adapter is None else LoRARequest("lora", 1, adapter)
        self._options: Any = {} if named is None else {"lora_request": named}

    @property
    def tokenizer(self) -> "Tokenizer":
        """The engine's tokenizer; ValueError if it has none."""
        if self._llm.tokenizer is None:
            raise ValueError(
                "the model has no tokenizer, and a command needs one: give --tokenizer"
            )
        return self._llm.tokenizer

    def request(
        self,
        prompt: str | Sequence[dict[str, str]],
        fields: Mapping[str, Any],
        thinking: bool | None = None,
    ) -> LocalRequest:
        """The request of a text, or of a conversation, whose template has its own BOS.

        Args:
            prompt: a text or messages.
            fields: of `SamplingParams`, over the model's defaults.
            thinking: `enable_thinking` of the chat template; None leaves it to the template.

        Raises:
            ValueError: a field is out of its range, or the template refuses.
        """
        params = self._llm.get_default_sampling_params().clone(**fields)
        if isinstance(prompt, str):
            return LocalRequest({"prompt": prompt}, params)
        text = self.tokenizer.apply_chat_template(prompt, enable_thinking=thinking)
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        inside = text.rstrip().endswith("<think>")
        return LocalRequest({"prompt_token_ids": token_ids}, params, inside)

    def stream(self, request: LocalRequest, answer: Answer) -> Generator[Piece]:
        """Yield the text of an answer piece by piece and fill in `answer`.

        Closing the iterator aborts the request.

        Raises:
            ValueError: the prompt does not fit the model, or the request failed.
        """
        watch = self.watch()
        outputs: Any = self._llm.stream(request.prompt, request.params, **self._options)
        try:
            with closing(outputs), ExitStack() as text_goes_on:
                for output in outputs:
                    if output.error is not None:
                        raise ValueError(f"the request failed: {output.error}")
                    if output.outputs[0].token_ids:
                        watch.mark_tokens(len(output.outputs[0].token_ids))
                    if output.outputs[0].text and not answer.text:
                        text_goes_on.enter_context(no_compile_notices())
                    _extend(answer, output)
                    yield False, output.outputs[0].text
        finally:
            answer.times = watch.times()

    def answer_all(
        self, lines: Sequence[PromptLine], requests: Sequence[LocalRequest]
    ) -> Iterator[Answer]:
        """Run many prompts as one batch; yield each answer once it and all earlier ones have ended.

        Raises:
            ValueError: a prompt or its sampling is refused; names file and line. Nothing has run.
        """
        from jaxinfer import RequestOutputKind

        for i, (line, request) in enumerate(zip(lines, requests, strict=True)):
            params = request.params.clone(output_kind=RequestOutputKind.FINAL_ONLY)
            try:
                self._llm.add_request(str(i), request.prompt, params, **self._options)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{line.where}: {error}") from None
        ended: dict[int, Answer] = {}
        for i in range(len(lines)):
            while i not in ended:
                for output in self._llm.step():
                    answer = ended[int(output.request_id)] = Answer()
                    _extend(answer, output)
            yield ended.pop(i)

    def watch(self) -> Stopwatch:
        """A stopwatch that starts now."""
        return Stopwatch(self._llm)

    def cut_reason(self, request: LocalRequest, answer: Answer, *, setting: str) -> str | None:
        """Why an answer was cut, and what `setting` to change; None if the model ended it."""
        if answer.finish_reason != "length":
            return None
        most = request.params.max_tokens
        if most is not None and answer.generation_tokens >= most:
            return f"cut at {setting} {most}; raise it for a longer answer"
        return (
            f"cut where prompt and answer fill the context of {self._llm.max_model_len} tokens; "
            "--max-model-len sets it"
        )


def _extend(answer: Answer, output: "RequestOutput") -> None:
    """Add the new tokens and text of an output."""
    piece = output.outputs[0]
    answer.text += piece.text
    answer.token_ids = answer.token_ids or []
    answer.token_ids.extend(piece.token_ids)
    answer.generation_tokens += len(piece.token_ids)
    answer.finish_reason, answer.error = piece.finish_reason, output.error
    answer.prompt_tokens = len(output.prompt_token_ids)
    answer.cached_tokens, answer.metrics = output.num_cached_tokens, output.metrics
