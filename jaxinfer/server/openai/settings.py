"""The settings of the HTTP server: names, keys, limits, parsers."""

import dataclasses
from pathlib import Path

from jaxinfer.serving.parsers.names import AUTO, reasoning_parser_name, tool_parser_name

_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of one front end, checked at construction.

    Attributes:
        served_model_names: names that requests may call the model; answers use the first.
        api_keys: accept only requests with this key. Empty accepts all requests.
        allowed_hosts: names besides this machine's own that requests may be for, as the Host and
            Origin headers say; * for all.
        enable_admin: serve routes that change the engine; needs a key.
        enable_tokenizer_info: serve `/tokenizer_info`, which shows the chat template.
        page: serve a chat page at `/`. Its files need no key, its requests do.
        max_body_bytes: most bytes of the body of a generation request.
        max_tokenize_bytes: most bytes of the body of a request to tokenize or detokenize.
        max_other_bytes: most bytes of the body of any other request; none of these carries texts.
        max_unfinished_bytes: most bytes of all unfinished request bodies together.
        body_seconds: time limit for a request's body to arrive, and for a client to read some of an
            answer that waits for it.
        keep_alive_seconds: seconds of silence after which a stream gets a comment.
        template_kwargs: names that `chat_template_kwargs` of a request may set.
        enable_auto_tool_choice: let the model decide whether it calls a tool.
        tool_call_parser: parser of tool calls in answers; auto chooses by the chat template.
        reasoning_parser: parser of reasoning in answers; auto chooses by the chat template.
        profile_directory: directory that `/start_profile` writes to; needs the admin routes. None
            refuses it.

    Raises:
        ValueError: names the setting.
    """

    served_model_names: tuple[str, ...] = ("jaxinfer",)
    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ("*",)
    enable_admin: bool = False
    enable_tokenizer_info: bool = False
    page: bool = True
    max_body_bytes: int = 32 * _MIB
    max_tokenize_bytes: int = 8 * _MIB
    max_other_bytes: int = _MIB
    max_unfinished_bytes: int = 256 * _MIB
    body_seconds: float = 60.0
    keep_alive_seconds: float = 15.0
    template_kwargs: frozenset[str] = frozenset({"enable_thinking"})
    enable_auto_tool_choice: bool = True
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    profile_directory: str | Path | None = None

    def __post_init__(self) -> None:
        if not self.served_model_names or not all(self.served_model_names):
            raise ValueError("served_model_names needs at least one name, and none may be empty")
        if not all(self.api_keys):
            raise ValueError("api_keys holds an empty key; leave it out or give it a value")
        if self.enable_admin and not self.api_keys:
            raise ValueError("enable_admin needs api_keys, for its routes change the engine")
        if self.profile_directory is not None and not self.enable_admin:
            raise ValueError("profile_directory needs enable_admin, which serves /start_profile")
        tool_parser_name(self.tool_call_parser, None)
        reasoning_parser_name(self.reasoning_parser, None)
        for name in (
            *("max_body_bytes", "max_tokenize_bytes", "max_other_bytes"),
            *("max_unfinished_bytes", "body_seconds", "keep_alive_seconds"),
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")

    @property
    def model_name(self) -> str:
        """The name in answers."""
        return self.served_model_names[0]
