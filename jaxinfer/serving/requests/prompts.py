"""Parses and checks prompts (text, token ids or dictionaries) before any request is enqueued."""

import dataclasses
import difflib
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxinfer.config import MAX_LOGPROBS
from jaxinfer.model.text.thinking_tokens import NO_THINKING, thinking_tokens
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.exact_params import RAW, Exactness
from jaxinfer.serving.requests.new_request import Prompt
from jaxinfer.serving.requests.packed_ids import pack_ids
from jaxinfer.serving.requests.prompt_texts import ContextLimits, check_bad_words, check_text

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_MAX_SALT_CHARS = 1024
_NEED_TOKENIZER = ("stop", "bad_words", "structured_outputs")  # fields of SamplingParams


@dataclasses.dataclass(frozen=True)
class PromptReader:
    """Reads and checks prompts for one engine.

    Attributes:
        tokenizer: None for an engine without text.
        vocab_size: V, width of the logits; ids must be below it.
        max_model_len: most tokens of prompt and output together.
        max_logprobs: most log-probabilities at a position.
        exactness: which measures of tokens are exact.
        longest_context: most tokens that the model is good for; None is `max_model_len`.
    """

    tokenizer: Tokenizer | None
    vocab_size: int
    max_model_len: int
    max_logprobs: int = MAX_LOGPROBS
    exactness: Exactness = RAW
    longest_context: int | None = None

    def read(self, prompts: Any, *, num_outputs: int = 1) -> list[Prompt]:
        """Check all prompts of a call.

        Args:
            prompts: a string, a list of token ids, a dictionary with "prompt" or
                "prompt_token_ids" and perhaps "cache_salt", or a list of these.
            num_outputs: room for generated tokens that each prompt must leave.

        Raises:
            TypeError: not a prompt; names its index.
            ValueError: an empty prompt, one that does not fit, or an id outside the vocabulary;
                names its index.
        """
        parts = split_prompts(prompts)
        return self.read_parts(parts, [None] * len(parts), num_outputs=num_outputs)

    def read_parts(
        self, parts: "Sequence[PromptParts]", limits: Sequence[int | None], *, num_outputs: int = 1
    ) -> list[Prompt]:
        """Check prompts from `split_prompts`.

        Args:
            limits: the number of last tokens to keep of each prompt; None keeps all.
            num_outputs: room for generated tokens that each prompt must leave.
        """
        encoded = iter(self._encode_texts(parts, limits, num_outputs))
        checked = []
        for part, limit in zip(parts, limits, strict=True):
            ids = part.token_ids if part.token_ids is not None else next(encoded)
            prompt = self.check_token_ids(
                part.name,
                ids,
                num_outputs=num_outputs,
                limit=limit,
                text=part.text,
                cache_salt=part.cache_salt,
            )
            checked.append(prompt)
        return checked

    def check_token_ids(
        self,
        name: str,
        token_ids: Any,
        *,
        num_outputs: int = 1,
        limit: int | None = None,
        text: str | None = None,
        cache_salt: str | None = None,
    ) -> Prompt:
        """A prompt from token ids, checked and converted to Python integers.

        Only the last `limit` tokens are kept.

        Raises:
            TypeError: an entry is not an integer; names it.
            ValueError: empty, or an id outside the vocabulary.
            PromptTooLongError: it leaves no room for the outputs.
        """
        ids, packed = _integers(name, token_ids)
        if not ids:
            raise ValueError(f"{name} is empty; a prompt needs at least one token")
        if limit is not None and len(ids) > limit:
            ids, packed = _integers(name, ids[-limit:])
        if len(ids) + num_outputs > self.max_model_len:
            raise self._limits.error(name, len(ids), num_outputs)
        if packed is None or not _all_below(self.vocab_size, packed):
            i = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < self.vocab_size)
            raise ValueError(
                f"{name}: token id {ids[i]} at position {i} is outside the model's vocabulary "
                f"(0 to {self.vocab_size - 1})"
            )
        return Prompt(ids, text, cache_salt, packed)

    def check_text(
        self, name: str, text: str, *, num_outputs: int = 1, may_be_longer: bool = False
    ) -> Tokenizer:
        """Refuse text that can't be tokenized, or that is clearly too long to be worth tokenizing.

        Args:
            num_outputs: room for generated tokens that it must leave.
            may_be_longer: accept any length, because the tokens will be truncated.

        Raises:
            ValueError: there is no tokenizer, or the text is not valid Unicode.
            PromptTooLongError: it can't have few enough tokens.
        """
        tokenizer, limits = self.tokenizer, self._limits
        return check_text(
            name, text, tokenizer, limits, num_outputs=num_outputs, may_be_longer=may_be_longer
        )

    @property
    def _limits(self) -> ContextLimits:
        return ContextLimits(self.max_model_len, self.longest_context)

    def check_params(self, params: SamplingParams) -> SamplingParams:
        """Check sampling parameters for the model; -1 log-probabilities become their number.

        Raises:
            ValueError: a token id is outside the vocabulary, more log-probabilities are requested
                than the engine reports or than are exact, a field needs a tokenizer and there is
                none, or the model does not think; names the field.
        """
        params.validate_for_vocab(self.vocab_size)
        if params.is_measured or params.forced_token_ids:
            self.exactness.check(params)
        if (params.truncate_prompt_tokens or 0) > self.max_model_len:
            raise ValueError(
                f"truncate_prompt_tokens ({params.truncate_prompt_tokens}) exceeds max_model_len "
                f"{self.max_model_len}; lower it, or write -1 to keep as many as fit"
            )
        needs_text = [name for name in _NEED_TOKENIZER if getattr(params, name)]
        if self.tokenizer is None and needs_text:
            field = needs_text[0]
            raise ValueError(f"{field} needs a tokenizer, and this engine has none")
        if params.thinking_token_budget is not None and not self.thinks:
            raise ValueError(f"thinking_token_budget: {NO_THINKING}")
        grammar = params.structured_outputs
        if grammar is not None and grammar.after_thinking and not self.thinks:
            raise ValueError(f"structured_outputs.after_thinking: {NO_THINKING}")
        if params.bad_words and self.tokenizer is not None:
            check_bad_words(params, self.tokenizer, self.vocab_size)
        return params.with_counted_logprobs(self.vocab_size, self.max_logprobs)

    def prompt_limit(self, params: SamplingParams) -> int | None:
        """The number of last tokens of a prompt to keep; None for all."""
        if params.truncate_prompt_tokens == -1:
            return max(1, self.max_model_len - 1)
        return params.truncate_prompt_tokens

    @functools.cached_property
    def thinks(self) -> bool:
        """Whether the model has tokens around its thinking."""
        tokenizer = self.tokenizer
        return tokenizer is not None and thinking_tokens(tokenizer, self.vocab_size) is not None

    def _encode_texts(
        self, parts: "Sequence[PromptParts]", limits: Sequence[int | None], num_outputs: int
    ) -> list[list[int]]:
        """Token ids of the prompts that are texts."""
        texts = []
        for part, limit in zip(parts, limits, strict=True):
            if part.token_ids is not None or part.text is None:
                continue
            self.check_text(
                part.name, part.text, num_outputs=num_outputs, may_be_longer=limit is not None
            )
            texts.append(part.text)
        if self.tokenizer is None or not texts:
            return []
        return self.tokenizer.encode_batch(texts)


def match_params(params: Any, num_prompts: int, default: SamplingParams) -> list[SamplingParams]:
    """One `SamplingParams` for each prompt.

    Raises:
        TypeError: something is not a `SamplingParams`.
        ValueError: the lengths differ; gives both.
    """
    if params is None:
        return [default] * num_prompts
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise TypeError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
    for i, entry in enumerate(params):
        if not isinstance(entry, SamplingParams):
            kind = type(entry).__name__
            raise TypeError(f"sampling_params[{i}] must be a SamplingParams, got {kind}")
    if len(params) != num_prompts:
        raise ValueError(
            f"there are {num_prompts} prompts but {len(params)} sampling_params; give one for "
            "each prompt, or one SamplingParams for all"
        )
    return list(params)


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    items: list[Any]
    is_single: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PromptParts:
    """The parts of a prompt, its tokens not checked yet.

    Attributes:
        text: None for a prompt of token ids alone.
        token_ids: None for a prompt of text alone.
    """

    name: str
    text: str | None
    token_ids: Any
    cache_salt: str | None


def split_prompts(prompts: Any) -> list[PromptParts]:
    """Split the prompts of a call into their parts.

    Raises:
        TypeError, ValueError: as `PromptReader.read`, except checks of token ids and lengths.
    """
    given = _as_list(prompts)
    if given.is_single:
        return [_split("prompt", given.items[0])]
    return [_split(f"prompts[{i}]", item) for i, item in enumerate(given.items)]


def _as_list(prompts: Any) -> _Given:
    """Prompts as a list, be it one or several."""
    if isinstance(prompts, (str, Mapping)) or getattr(prompts, "ndim", None) == 1:
        return _Given([prompts], is_single=True)
    if isinstance(prompts, Iterable) and not isinstance(prompts, (bytes, set, frozenset)):
        items = list(prompts)
        return (
            _Given([items], is_single=True)
            if items and _is_number(items[0])
            else _Given(items, is_single=False)
        )
    raise TypeError(
        "prompts must be a string, a list of token ids, a dict, or a list of these; "
        f"got {type(prompts).__name__}"
    )


def _split(name: str, item: Any) -> PromptParts:
    """One prompt as its parts; raises TypeError unless it is one."""
    if isinstance(item, str):
        return PromptParts(name, item, None, None)
    if isinstance(item, Mapping):
        return _split_mapping(name, item)
    if isinstance(item, (bytes, set, frozenset)) or not isinstance(item, Iterable):
        raise TypeError(
            f"{name} must be a string, a list of token ids or a dict, got {type(item).__name__}"
        )
    return PromptParts(name, None, item, None)


def _split_mapping(name: str, item: Mapping[str, Any]) -> PromptParts:
    """A prompt that is a dictionary as its parts."""
    for key in item:
        if key not in _PROMPT_KEYS:
            near = difflib.get_close_matches(str(key), _PROMPT_KEYS, n=1)
            hint = (
                f"; did you mean {near[0]!r}?" if near else f"; keys are {', '.join(_PROMPT_KEYS)}"
            )
            raise ValueError(f"{name} has an unknown key {key!r}{hint}")
    text, token_ids, salt = (item.get(key) for key in _PROMPT_KEYS)
    if text is None and token_ids is None:
        raise ValueError(f'{name} needs "prompt" or "prompt_token_ids"')
    if text is not None and not isinstance(text, str):
        raise TypeError(f'{name}: "prompt" must be a string, got {type(text).__name__}')
    if salt is not None and (not isinstance(salt, str) or not 0 < len(salt) <= _MAX_SALT_CHARS):
        raise ValueError(
            f"{name}: cache_salt must be a string of 1 to {_MAX_SALT_CHARS} characters"
        )
    return PromptParts(name, text, token_ids, salt)


def _integers(name: str, values: Any) -> tuple[list[int], bytes | None]:
    """Token ids as Python integers, and packed as int32, or None if one does not fit."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of token ids, got {type(values).__name__}")
    # NumPy and JAX arrays: one transfer instead of one an element.
    to_list = getattr(values, "tolist", None)
    ids = to_list() if to_list is not None else list(values)
    if not set(map(type, ids)) <= {int}:
        ids = [_integer(name, i, token_id) for i, token_id in enumerate(ids)]
    try:
        return ids, pack_ids(ids)
    except OverflowError:
        return ids, None


def _all_below(limit: int, packed: bytes) -> bool:
    """Whether all packed ids, at least one, are in `[0, limit)`."""
    ids = np.frombuffer(packed, np.int32)
    return bool(ids.min() >= 0 and ids.max() < limit)


def _integer(name: str, index: int, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: token id {value!r} at position {index} is no integer") from None


def _is_number(value: Any) -> bool:
    """Whether it is an integer, of Python or NumPy, and no boolean."""
    # Wrong numbers (True, 0.5) too, so that the error names token ids and their position.
    return isinstance(value, (int, float)) or getattr(value, "ndim", None) == 0
