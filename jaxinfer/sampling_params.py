"""Sampling parameters of a request: the fields of vLLM's SamplingParams, checked at once."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, no_type_check

from jaxinfer.checks import instead_of_vllm
from jaxinfer.sampling_fields import RequestOutputKind, check_fields
from jaxinfer.structured_outputs import StructuredOutputsParams

SamplingMode = Literal["temperature", "truncate", "full", "measured"]
FULL: tuple[SamplingMode, ...] = ("full", "measured")
"""Modes that read the state of a request's slot."""
FreeLogprobs = Literal["all", "unscaled", "untruncated", "none"]
"""Requests for which the draw itself gives the chosen token's log-probability: all that sample,
only samples of the model's own distribution, or of it at a temperature, or none."""

GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy decoding, as in vLLM."""

_TOKEN_IDS = ["stop_token_ids", "allowed_token_ids", "logit_bias"]
_TOKEN_IDS += ["logprob_token_ids", "forced_token_ids"]
_GENERATION_CONFIG_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@no_type_check  # its fields check themselves, by name; run-time checkers would come first
@dataclass(unsafe_hash=True)
class SamplingParams:
    """Sampling parameters of one request: how to choose tokens, when to stop, and what to report.

    Every field is checked, together with the others, at construction and at assignment; the error
    names the field, and a refused assignment changes nothing. Sequences are stored as tuples.
    Booleans are not numbers here (but see `logprobs`), and strings are never converted. A request
    takes a copy, so that assignments change later requests only. The hash changes with the fields:
    keep parameters that are assigned to out of sets.

    Attributes:
        n: Number of completions of each prompt, 1 to 1024. With greedy decoding all are the same.
        temperature: Divides the logits; 0 (or anything below 1e-5) is greedy decoding, and then
            `top_k`, `top_p` and `min_p` have no effect. At most 100.
        top_k: Keep the k most likely tokens; 0 or -1 keeps all. Of tokens that tie at the
            boundary the lowest ids are kept, so that exactly k remain.
        top_p: Keep the smallest set of tokens whose probability (after temperature, `min_p` and
            `top_k`) is at least this, 0 < top_p <= 1; 1 keeps all.
        min_p: Keep tokens at least this fraction as likely as the likeliest one, 0 to 1.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in the
            prompt or the output, 0.01 to 100; 1 is off.
        presence_penalty: Subtracted from the logits of tokens in the output, -2 to 2; 0 is off.
        frequency_penalty: Subtracted once for each time a token is in the output, -2 to 2.
        seed: Makes the request's random draws repeatable: in float32 its tokens are the same
            in every batch (in bfloat16 and float16 a near tie may fall otherwise). Any
            signed 64-bit integer; None or -1 leaves the choice to the engine.
        stop: A string or strings that end the output, at most 64.
        stop_token_ids: Token ids that end the output, at most 64.
        include_stop_str_in_output: Keep the stop string in the text.
        ignore_eos: Go on after the end-of-sequence token.
        min_tokens: Ban end-of-sequence and `stop_token_ids` before this number of output tokens.
        max_tokens: Most output tokens; None is as many as the model's length allows.
        logprobs: Report the log-probabilities of the chosen token and of this number of likeliest
            tokens, at most the engine's `max_logprobs`. -1 is all, and True is 1. Of the model's
            own logits, or of the sampled distribution, as the engine's `logprobs_mode` says. With 0
            the rank may be None; ask for 1 to have it.
        prompt_logprobs: The same for the prompt's tokens, always of the model's own logits.
        prompt_logprob_start: Index of the first prompt token that `prompt_logprobs` are reported
            of; the entries before it are None. Tokens before it are found in the prefix cache.
        logprob_token_ids: Token ids, at most 64, whose log-probabilities stand in `logprobs` at
            each position, whatever was drawn there; their rank is None unless they are among the
            likeliest.
        forced_token_ids: Token ids that the answer begins with, in place of drawn ones. They are
            fed as a prompt's, count as answer everywhere (`max_tokens`, penalties, text), and have
            log-probabilities like drawn ones.
        entropy: Report each token's entropy: see `CompletionOutput.entropies`.
        support: Report the tokens that could have been drawn at each position: how many, and the
            ids of at most this number of them, the likeliest ones, at most the engine's
            `max_logprobs`. See `Support`.
        truncate_prompt_tokens: Keep only this number of the prompt's last tokens, at least 1;
            -1 keeps as many as the model's length allows beside one output token. None refuses
            prompts that are too long.
        logit_bias: Token id to a value, -100 to 100, added to its logit; at most 300 entries.
            Keys may be decimal strings, as JSON has no others.
        allowed_token_ids: When given, no other token is ever chosen.
        bad_words: Strings whose last token is banned when the tokens before it are already out;
            at most 128.
        structured_outputs: A grammar that the answer follows, as `StructuredOutputsParams` or a
            dictionary of its fields. The grammar says where the answer may end: `ignore_eos` has
            no effect, and `min_tokens` is refused.
        timeout: Seconds from a request's arrival after which it ends, waiting or running, with the
            tokens that it has, `finish_reason` "abort" and `stop_reason` "timeout". None sets no
            limit.
        thinking_token_budget: Most tokens that the model thinks with; after them the engine inserts
            `</think>`. None and -1 set no limit. Only for models that have
            `<think>` and `</think>` as tokens; has no effect on an answer that begins without.
        skip_special_tokens: Leave special tokens out of the text.
        detokenize: Make text at all; stop strings need it.
        output_kind: What `AsyncLLM.generate` and `LLM.step` give: a `RequestOutputKind`, or its
            number. `generate` and `chat` of an `LLM` always return final outputs, `stream` and
            `astream` always give new parts.

    Raises:
        TypeError: A field has the wrong type.
        AttributeError: There is no field of the name that is assigned to.
        ValueError: A field is outside its range or two fields contradict each other.
    """

    n: int = 1
    _: KW_ONLY
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_start: int = 0
    logprob_token_ids: Sequence[int] | None = None
    forced_token_ids: Sequence[int] | None = ()
    entropy: bool = False
    support: int | None = None
    truncate_prompt_tokens: int | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = ()
    timeout: float | None = None
    thinking_token_budget: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __new__(cls, *_: Any, **given: Any) -> "SamplingParams":
        """Refuse names that are no fields before the fields are filled in."""
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise TypeError(_unknown_field(name))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check every field and store it in its plain Python type."""
        check_fields(self, self._put)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(_unknown_field(name))
        if name not in vars(self):  # under construction
            self._put(name, value)
        else:
            vars(self).update(vars(self.clone(**{name: value})))

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"SamplingParams: {name} can't be deleted; assign a value")

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def truncates(self) -> bool:
        """Whether `top_k` or `top_p` narrows the distribution."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0)

    def sampling_mode(self, free_logprobs: FreeLogprobs = "all") -> SamplingMode:
        """The least of the sampler's modes that can serve this request.

        "temperature" has temperature, `min_p` and greedy decoding, and gives the chosen token's
        log-probability in the distribution drawn from; "truncate" adds `top_k` and `top_p`; "full"
        adds everything that edits logits or reports other log-probabilities; "measured" adds
        entropy, support and the log-probabilities of `logprob_token_ids`.

        Args:
            free_logprobs: requests for which the cheaper modes report the right ones.
        """
        if self.is_measured:
            return "measured"
        if self.edits_logits or not self._gets_free_logprobs(free_logprobs):
            return "full"
        return "truncate" if self.truncates else "temperature"

    @property
    def is_measured(self) -> bool:
        """Whether more is reported of each token than log-probabilities of likeliest ones."""
        return self.entropy or self.support is not None or self.logprob_token_ids is not None

    @property
    def is_reported(self) -> bool:
        """Whether anything is reported of each token."""
        return self.logprobs is not None or self.is_measured

    @property
    def has_given_scores(self) -> bool:
        """Whether tokens that are given, of the prompt or forced, may have to be scored."""
        return self.prompt_logprobs is not None or bool(self.forced_token_ids)

    @property
    def has_constraints(self) -> bool:
        """Whether the host must see tokens of the answer before it lets others be drawn."""
        return bool(
            self.structured_outputs is not None
            or self.thinking_token_budget is not None
            or self.bad_words
        )

    @property
    def edits_logits(self) -> bool:
        """Whether a logit is changed or banned before the draw."""
        return self.has_penalties or bool(
            self.has_constraints
            or self.logit_bias
            or self.allowed_token_ids is not None
            or self.min_tokens > 0
        )

    def _gets_free_logprobs(self, free: FreeLogprobs) -> bool:
        """Whether the sampler has the wanted log-probabilities at no further cost."""
        if self.logprobs is None:
            return True
        if self.logprobs != 0 or self.is_greedy or free == "none":
            return False
        if free == "all":
            return True
        unscaled = self.temperature == 1.0 or free == "untruncated"
        return unscaled and self.min_p == 0.0 and not self.truncates

    @property
    def has_penalties(self) -> bool:
        """Whether any penalty needs the tokens seen so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def validate_for_vocab(self, vocab_size: int) -> None:
        """Check the token ids against the width of the logits.

        Raises:
            ValueError: A token id is not below `vocab_size`; the message names the field.
        """
        for name in _TOKEN_IDS:
            largest = max(getattr(self, name) or (), default=0)
            if largest >= vocab_size:
                raise ValueError(
                    f"{name} has token id {largest}, but the model's vocabulary ends at "
                    f"{vocab_size - 1}"
                )

    def with_counted_logprobs(self, vocab_size: int, most: int) -> "SamplingParams":
        """The same with numbers in place of a `logprobs` or `prompt_logprobs` of -1.

        Args:
            vocab_size: how many log-probabilities are all.
            most: how many the engine reports at most.

        Raises:
            ValueError: more are asked for; names the field.
        """
        counts: dict[str, int] = {}
        for name in ("logprobs", "prompt_logprobs", "support"):
            count = getattr(self, name)
            if count == -1:
                counts[name] = count = vocab_size
            if count is not None and count > most:
                raise ValueError(
                    f"{name} asks for {count}, but max_logprobs is {most}; lower it, or start the "
                    "engine with a higher max_logprobs (-1 for the whole vocabulary)"
                )
        return self.clone(**counts) if counts else self

    def clone(self, **changes: Any) -> "SamplingParams":
        """Return a copy with some fields replaced, checked like a new one."""
        if not changes and self.logit_bias is None:  # every other field is immutable
            copy = object.__new__(type(self))
            vars(copy).update(vars(self))
            return copy
        return dataclasses.replace(self, **changes)

    def difference(self) -> str:
        """The fields that are not vLLM's defaults, as `name=value`; "none" if all are."""
        plain = SamplingParams()
        changed = {k: value for k, value in vars(self).items() if value != getattr(plain, k)}
        return ", ".join(f"{name}={value}" for name, value in changed.items()) or "none"

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any], **given: Any) -> "SamplingParams":
        """Make parameters from a model's `generation_config.json`; `given` fields win.

        `do_sample: false` means greedy decoding, also if the file has a temperature.

        Raises:
            TypeError, ValueError: A value is not a legal field; named as the field it becomes.
        """
        values = {
            ours: config[theirs]
            for theirs, ours in _GENERATION_CONFIG_FIELDS.items()
            if config.get(theirs) is not None
        }
        if config.get("do_sample") is False:
            values["temperature"] = 0.0
        return cls(**(values | given))


def _unknown_field(name: str) -> str:
    message = f"SamplingParams has no field {name!r}"
    if (instead := instead_of_vllm("sampling").get(name)) is not None:
        return f"{message}: {instead}"
    nearest = difflib.get_close_matches(name, SamplingParams.__dataclass_fields__, n=1, cutoff=0.75)
    if nearest:
        return f"{message}; did you mean {nearest[0]!r}?"
    return f"{message}; docs/from-vllm.md says what to write for vLLM's others"
