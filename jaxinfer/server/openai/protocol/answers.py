"""Answer parts that several routes share; plain dictionaries, documented by their types."""

from typing import Literal, NotRequired, TypedDict


class PromptTokensDetails(TypedDict):
    """Details of the prompt's tokens: the number found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """Details of the completions' tokens: reasoning, and drafts that were accepted or not.

    Rejected drafts are no tokens of a completion.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: NotRequired[int]
    rejected_prediction_tokens: NotRequired[int]


class Usage(TypedDict):
    """Tokens of a request; a prompt's tokens count once, for any number of completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class PromptLogprob(TypedDict):
    """One token's log-probability at a position of a prompt; minus infinity is -9999."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt, by token id; null for the first."""


class ModelCard(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(TypedDict):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class Version(TypedDict):
    """The server's version."""

    version: str


class Load(TypedDict):
    """This front end's load."""

    server_load: int


class Status(TypedDict):
    """The status of an administrative action."""

    status: NotRequired[str]
    is_sleeping: NotRequired[bool]
    is_paused: NotRequired[bool]


class TokenizeAnswer(TypedDict):
    """Tokens of a text."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class DetokenizeAnswer(TypedDict):
    """The text of tokens."""

    prompt: str


class TokenizerInfo(TypedDict):
    """Facts to format and count prompts with, as this server does."""

    tokenizer_class: str
    chat_template: str | None
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
