"""An engine that says what a test wants where the last message asks for it, token by token."""

import asyncio

from jaxinfer.logprobs import Logprob
from jaxinfer.outputs import CompletionOutput, RequestOutput
from tests.server.openai.fake_engine import FakeEngine

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    "<a href=\"javascript:document.title='owned'\">é 🏠</a> &lt;b&gt; [x](javascript:1)"
)
MARKED = "Some **bold words** and\n\n- an `item`\n\n```\nx = 1\n```\n"
SLOW = " ".join(f"word{number}" for number in range(400))
SCRIPTS = {
    "hostile": (HOSTILE, 0.0),
    "marked": (MARKED, 0.0),
    "slow": (SLOW, 0.02),
    "late": ("Thoughts without a beginning.\n</think>\n\nAn answer.", 0.0),
}
"""By a word of the message: the answer, and seconds between its tokens."""


class ScriptedEngine(FakeEngine):
    """A real engine, but for messages that hold a word of `SCRIPTS`."""

    def generate(self, prompt, params, request_id, **options):
        last = (prompt.get("prompt") or "").rsplit("<|im_start|>user", 1)[-1]
        script = next((SCRIPTS[word] for word in SCRIPTS if word in last), None)
        if script is None:
            return self._engine.generate(prompt, params, request_id, **options)
        return self._say(prompt["prompt_token_ids"], params, *script)

    async def _say(self, prompt, params, text, seconds):
        tokenizer = self._engine.tokenizer
        ids = tokenizer.encode(text)
        shown = 0
        for index in range(len(ids)):
            await asyncio.sleep(seconds)
            so_far = tokenizer.decode(ids[: index + 1]).removesuffix("�")
            is_last = index == len(ids) - 1
            likely = {ids[index]: Logprob(-0.1, 1), ids[0]: Logprob(-3.0, 2)}
            yield RequestOutput(
                "r",
                None,
                prompt,
                [
                    CompletionOutput(
                        0,
                        so_far[shown:],
                        [ids[index]],
                        logprobs=[likely] if params.logprobs is not None else None,
                        finish_reason="stop" if is_last else None,
                    )
                ],
                finished=is_last,
            )
            shown = len(so_far)
