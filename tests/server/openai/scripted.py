"""Engines whose answers are written down: for what no small model says when it is asked."""

from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.sampling_params import RequestOutputKind
from jaxinfer.serving.parsers.answer import AnswerParser
from jaxinfer.serving.requests.new_request import NewRequest, Prompt, wanted_outputs
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.result import NO_SCORES


class ScriptedEngine:
    """Gives every request these texts, each a completion, in parts where it streams.

    Args:
        engine: a real one, for its facts.
        texts: of the completions.
        length: characters of a part.
        finish_reason: of all completions.
    """

    def __init__(self, engine, *texts, length=3, finish_reason="stop"):
        self._engine = engine
        self._texts = texts
        self._length = length
        self._finish_reason = finish_reason
        self.prompts = []
        self.params = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(self, prompt, params, request_id, *, answer=None, **_):
        self.prompts.append(prompt["prompt"])
        self.params.append(params)
        parsers = [_parser(answer) for _ in self._texts]
        if params.output_kind == RequestOutputKind.FINAL_ONLY:
            yield self._output(request_id, list(self._texts), True, parsers)
            return
        for start in range(0, max(map(len, self._texts)), self._length):
            texts = [text[start : start + self._length] for text in self._texts]
            yield self._output(request_id, texts, False, parsers)
        yield self._output(request_id, [""] * len(self._texts), True, parsers)

    def _output(self, request_id, texts, finished, parsers):
        return RequestOutput(
            request_id=request_id,
            prompt=None,
            prompt_token_ids=[1, 2],
            outputs=[
                CompletionOutput(
                    index=i,
                    text=text,
                    token_ids=[5] * bool(text),
                    cumulative_logprob=None,
                    logprobs=None,
                    finish_reason=self._finish_reason if finished else None,
                    stop_reason=None,
                    pieces=parser and [*parser.feed(text), *(parser.finish() if finished else ())],
                )
                for i, (text, parser) in enumerate(zip(texts, parsers, strict=True))
            ],
            prompt_logprobs=None,
            finished=finished,
        )


class TokenEngine:
    """Gives every request these tokens, one at a time, as an engine in this process would.

    Args:
        engine: a real one, for its facts.
        token_ids: of the answer, without the end-of-sequence token that follows.
        tokenizer: in place of the engine's.
    """

    def __init__(self, engine, token_ids, tokenizer=None):
        self._engine = engine
        self._token_ids = [*token_ids, engine.tokenizer.eos_token_id]
        self.tokenizer = tokenizer or engine.tokenizer
        self.params = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(self, prompt, params, request_id, *, answer=None, **_):
        self.params.append(params)
        new = NewRequest(
            prompt=Prompt(prompt["prompt_token_ids"]),
            params=params,
            kind=wanted_outputs(params),
            answer=answer,
        )
        group = RequestGroup(new, seed=0, tokenizer=self.tokenizer)
        (completion,) = group.completions
        for i, token_id in enumerate(self._token_ids, start=1):
            completion.request.finish_reason = "stop" if i == len(self._token_ids) else None
            completion.extend([token_id], NO_SCORES, 0)
            if (output := group.output(0.0)) is not None:
                yield output
            if group.is_finished:
                return


def _parser(answer):
    """What reads a text in which tags are letters, as a script has them."""
    return answer and AnswerParser(
        reasoning=None if answer.stage == "over" else answer.reasoning,
        tools=answer.tools,
        is_open=answer.stage == "open",
        schemas=answer.schemas,
        parallel=answer.parallel,
    )
