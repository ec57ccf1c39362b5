"""Makes the constraint of each request from its parameters: grammar, thinking budget, bad words."""

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future

import numpy as np

from jaxinfer.model.text import thinking_tokens
from jaxinfer.model.text.bad_words import bad_word_ids
from jaxinfer.model.text.thinking_tokens import NO_THINKING, ThinkingTokens
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.constraints.bad_words import BadWords
from jaxinfer.serving.constraints.constraint import Constraint, NextToken, TokenEdits
from jaxinfer.serving.constraints.grammar.compiler import GrammarCompiler
from jaxinfer.serving.constraints.grammar.grammar_constraint import GrammarConstraint
from jaxinfer.serving.constraints.grammar.thinking import ThinkingMatcher
from jaxinfer.serving.constraints.thinking_budget import ThinkingBudget
from jaxinfer.structured_outputs import ThinkingStage


class RequestConstraints:
    """The `ConstraintSource` of one engine, or of several that share a tokenizer.

    Args:
        tokenizer: of the model; None refuses requests that need a constraint.
        grammars: compiles grammars; made from the other arguments by default.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        eos_token_ids: Collection[int],
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = sorted(eos_token_ids)
        self._tokens, self._grammars = None, grammars
        if tokenizer is not None:
            self._tokens = thinking_tokens.thinking_tokens(tokenizer, vocab_size)
            self._grammars = grammars or GrammarCompiler(tokenizer, vocab_size, eos_token_ids)

    def make(
        self, params: SamplingParams, prompt: bytes, stage: ThinkingStage | None, *, calls: bool
    ) -> Constraint | None:
        """Make a new request's constraint, or None; see `ConstraintSource.make`."""
        parts: list[Constraint] = []
        if (given := params.structured_outputs) is not None:
            if self._grammars is None:
                raise ValueError("structured_outputs needs a tokenizer, and this engine has none")
            matcher = self._grammars.get(given).matcher()
            if given.after_thinking:
                field = "structured_outputs.after_thinking"
                tokens, stage = self._thinking(field, prompt, stage)
                if stage != "over":
                    matcher = ThinkingMatcher(matcher, tokens, stage, calls=calls)
            parts.append(GrammarConstraint(matcher, params))
        if (budget := params.thinking_token_budget) is not None:
            tokens, stage = self._thinking("thinking_token_budget", prompt, stage)
            parts.append(ThinkingBudget(budget, tokens, stage, calls=calls))
        if params.bad_words:
            if self._tokenizer is None:
                raise ValueError("bad_words needs a tokenizer, and this engine has none")
            parts.append(BadWords(bad_word_ids(params.bad_words, self._tokenizer)))
        return _Several(parts) if len(parts) > 1 else parts[0] if parts else None

    def start_all(self, requests: Iterable[SamplingParams]) -> Future[None] | None:
        """Compile the requests' grammars in other threads; see `ConstraintSource.start_all`."""
        given = [params.structured_outputs for params in requests]
        return None if self._grammars is None else self._grammars.start_all(given)

    def close(self) -> None:
        """End the threads once their work is done; safe to repeat."""
        if self._grammars is not None:
            self._grammars.close()

    def _thinking(
        self, field: str, prompt: bytes, stage: ThinkingStage | None
    ) -> tuple[ThinkingTokens, ThinkingStage]:
        """The tokens of the model's thinking, and its stage at a prompt's end."""
        if (tokens := self._tokens) is None:
            raise ValueError(f"{field}: {NO_THINKING}")
        if stage is None:
            token_ids = np.frombuffer(prompt, np.int32)
            stage = thinking_tokens.thinking_stage(token_ids, tokens, self._eos_token_ids)
        return tokens, stage


class _Several:
    """Several constraints of one request; at most one of them has masks or forces tokens."""

    def __init__(self, parts: Sequence[Constraint]) -> None:
        self._parts = parts
        self.starts_at = min(part.starts_at for part in parts)

    def after(self, token_ids: Sequence[int]) -> NextToken:
        (banned, required), forced, mask = NextToken()
        for edits, also_forced, also_mask in [part.after(token_ids) for part in self._parts]:
            banned |= edits.banned
            required = edits.required if required is None else required
            forced, mask = forced or also_forced, mask or also_mask
        return NextToken(TokenEdits(banned, required), forced, mask)
