"""Turns conversations into prompts by the model's chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.serving.requests.prompts import PromptReader


def chat_prompts(
    messages: Sequence[Any],
    reader: PromptReader,
    *,
    may_be_longer: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Prompts for `PromptReader.read`, one for each conversation.

    Args:
        messages: a conversation (a list of dictionaries) or a list of conversations.
        reader: has the tokenizer, which has the template.
        may_be_longer: tokens are cut later, so a text of any length is tokenized.
        chat_template_kwargs: further options, which win, and names for the template.
        options: as in `Tokenizer.apply_chat_template`.

    Raises:
        TypeError: messages are not plain JSON data, or a name for the template is not text.
        ValueError: there is no tokenizer or no template, or the template refuses or fails.
    """
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise ValueError("chat needs a tokenizer with a chat template; this engine has none")
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        kind = type(messages).__name__
        raise TypeError(f"messages must be a list of dicts with 'role' and 'content', got {kind}")
    options |= _template_names(chat_template_kwargs)
    is_batch = bool(messages) and isinstance(messages[0], (list, tuple))
    prompts = []
    for i, conversation in enumerate(messages if is_batch else [messages]):
        if not isinstance(conversation, Sequence):
            kind = type(conversation).__name__
            raise TypeError(f"messages[{i}] must be a list of dicts, as messages[0] is, got {kind}")
        text = tokenizer.apply_chat_template(conversation, **options)
        name = f"messages[{i}]" if is_batch else "messages"
        reader.check_text(name, text, may_be_longer=may_be_longer)
        # The template has written the special tokens already.
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        prompts.append({"prompt": text, "prompt_token_ids": token_ids})
    return prompts


def truncates_prompts(sampling_params: Any) -> bool:
    """Whether any sampling parameters of a call, not checked yet, cut its prompts."""
    each = sampling_params if isinstance(sampling_params, Sequence) else [sampling_params]
    return any(getattr(params, "truncate_prompt_tokens", None) is not None for params in each)


def _template_names(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError("chat_template_kwargs must be a dict of names for the template")
    taken = {"messages", "self", "tokenize"} & given.keys()
    if taken:
        raise ValueError(
            f"chat_template_kwargs can't set {taken.pop()!r}, which is taken; "
            "rename it in the template"
        )
    return dict(given)
