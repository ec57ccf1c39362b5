"""Conversations become prompts, by the model's chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.model.tokenizer import Tokenizer


def chat_prompts(
    messages: Sequence[Any], tokenizer: Tokenizer | None, **options: Any
) -> list[dict[str, Any]]:
    """Prompts for `PromptReader.read`, one for each conversation.

    Args:
        messages: a conversation (a list of dictionaries) or a list of conversations.
        tokenizer: has the template.
        options: as in `Tokenizer.apply_chat_template`.

    Raises:
        TypeError: messages are not plain JSON data.
        ValueError: there is no tokenizer or no template, or the template refuses or fails.
    """
    if tokenizer is None:
        raise ValueError("chat needs a tokenizer with a chat template; this engine has none")
    if isinstance(messages, (str, Mapping)):
        kind = type(messages).__name__
        raise TypeError(f"messages must be a list of dicts with 'role' and 'content', got {kind}")
    is_batch = bool(messages) and isinstance(messages[0], (list, tuple))
    prompts = []
    for conversation in messages if is_batch else [messages]:
        text = tokenizer.apply_chat_template(conversation, **options)
        # The template has written the special tokens already.
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        prompts.append({"prompt": text, "prompt_token_ids": token_ids})
    return prompts
