"""An engine that answers at once, with as many completions, tokens and scores as were asked for."""

from jaxinfer.expert_statistics import RebalancedExperts
from jaxinfer.logprobs import Logprob
from jaxinfer.outputs import CompletionOutput, RequestOutput
from tests.server.openai.fake_engine import FakeEngine

TEXT = "abc"
TOKEN_IDS = [5, 6, 7]


class ToyEngine(FakeEngine):
    """Gives every prompt the same tokens, and does nothing that administration asks for."""

    is_sleeping = False

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(
        self, prompt, params, request_id, *, prefill_only=False, pooled=False, **options
    ):
        prompt_ids = list(prompt["prompt_token_ids"])
        count = (
            0
            if prefill_only or pooled
            else min(params.max_tokens or len(TOKEN_IDS), len(TOKEN_IDS))
        )
        token_ids = TOKEN_IDS[:count]
        completions = [
            CompletionOutput(
                index,
                TEXT[:count],
                token_ids,
                logprobs=_scores(token_ids, params.logprobs),
                finish_reason="length",
            )
            for index in range(params.n)
        ]
        scores = _scores(prompt_ids, params.prompt_logprobs)
        yield RequestOutput(
            request_id,
            prompt.get("prompt"),
            prompt_ids,
            completions,
            finished=True,
            embedding=[0.5] * self.model_config.hidden_size if pooled else None,
            prompt_logprobs=scores and [None, *scores[1:]],
        )

    async def _nothing(self, *args, **options):
        pass

    async def rebalance_experts(self, load):
        return RebalancedExperts(1.5, 1.0, 3)

    sleep = wake_up = pause = resume = start_profile = stop_profile = _nothing
    reset_prefix_cache = _nothing


def _scores(token_ids, count):
    """At each position its own token, and as many others as were asked for."""
    if count is None:
        return None
    score = Logprob(float("-inf"), None, None)
    return [dict.fromkeys((own, *range(count)), score) for own in token_ids]
