"""A request's grammar as a constraint: masks for its tokens, and tokens that it forces."""

from collections.abc import Sequence

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.constraints.constraint import NextToken
from jaxinfer.serving.constraints.grammar.matcher import Matcher
from jaxinfer.serving.constraints.grammar.thinking import ThinkingMatcher


class GrammarConstraint:
    """The constraint that makes one answer follow its grammar.

    Forced tokens are left to the masks if their log-probabilities are reported, penalties count
    them, or another rule could forbid them.
    """

    starts_at = 0

    def __init__(self, matcher: Matcher | ThinkingMatcher, params: SamplingParams) -> None:
        self.matcher = matcher
        given, budget = params.structured_outputs, params.thinking_token_budget
        thinks_first = given is not None and given.after_thinking  # so the budget is over by then
        is_budgeted = budget is not None and not thinks_first
        has_rules = bool(params.bad_words) or params.allowed_token_ids is not None or is_budgeted
        self._forces = not (params.is_reported or params.has_penalties or has_rules)

    def after(self, token_ids: Sequence[int]) -> NextToken:
        """The mask of the next token, and tokens that are forced; or a `GrammarError`."""
        matcher = self.matcher
        matcher.follow(token_ids)
        forced = matcher.forced_tokens() if self._forces else ()
        return NextToken(forced=forced, mask=matcher if matcher.wants_mask else None)
