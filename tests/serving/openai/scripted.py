"""An engine whose answers are written down: for what no small model says when it is asked."""

from jaxinfer.outputs import CompletionOutput, RequestOutput
from jaxinfer.sampling_params import RequestOutputKind


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

    async def generate(self, prompt, params, request_id, **_):
        self.prompts.append(prompt["prompt"])
        self.params.append(params)
        if params.output_kind == RequestOutputKind.FINAL_ONLY:
            yield self._output(request_id, list(self._texts), True)
            return
        for start in range(0, max(map(len, self._texts)), self._length):
            yield self._output(
                request_id, [text[start : start + self._length] for text in self._texts], False
            )
        yield self._output(request_id, [""] * len(self._texts), True)

    def _output(self, request_id, texts, finished):
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
                )
                for i, text in enumerate(texts)
            ],
            prompt_logprobs=None,
            finished=finished,
        )
