"""The state of a chat: its messages, its settings, and the slash commands that change them."""

import dataclasses
from typing import Any

from jaxinfer.cli.flags.sampling import check_sampling

SAMPLING_SETTINGS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_tokens": int,
    "seed": int,
}

HELP = """/help             this list
/reset            forget the conversation (the system message stays)
/system TEXT      set the system message and start anew (no TEXT: without one)
/set              show the settings
/set NAME VALUE   change one: temperature, top_p, top_k, min_p, repetition_penalty,
                  presence_penalty, frequency_penalty, max_tokens, seed, thinking (on, off, auto)
/exit             leave (also Ctrl-D)
\"\"\"               begins and ends a message of several lines
Ctrl-C            stops the answer"""


@dataclasses.dataclass
class Conversation:
    """The messages so far and the settings of the next answer.

    Attributes:
        turns: messages of user and assistant, alternating, the user first.
        sampling: `SamplingParams` fields that differ from the model's defaults.
        thinking: ask the template for thinking or for none; None leaves it to the template.
    """

    system: str | None = None
    turns: list[dict[str, str]] = dataclasses.field(default_factory=list)
    sampling: dict[str, Any] = dataclasses.field(default_factory=dict)
    thinking: bool | None = None

    def messages(self, question: str) -> list[dict[str, str]]:
        """The messages for the chat template, when the user asks `question` next."""
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*before, *self.turns, {"role": "user", "content": question}]

    def keep(self, question: str, answer: str) -> None:
        """Add the user's question and the model's answer, both or (on an interrupt) none."""
        self.turns += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]

    def run_slash_command(self, line: str) -> str | None:
        """Carry out a line that begins with "/"; a message, or None if the user wants to leave.

        Raises:
            ValueError: no such command or setting, or a value that does not parse or is out of its
                range; nothing has changed.
        """
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        match name:
            case "/help":
                return HELP
            case "/reset":
                self.turns.clear()
                return "forgotten"
            case "/system":
                self.turns.clear()
                self.system = rest or None
                return "new conversation " + ("with" if rest else "without") + " a system message"
            case "/set":
                return self._set(rest)
            case "/exit" | "/quit":
                return None
        raise ValueError(f"no command {name}; /help lists them")

    def _set(self, rest: str) -> str:
        if not rest:
            return self._settings()
        name, _, value = rest.partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        if name == "thinking":
            self.thinking = _parse_thinking(value)
        elif name in SAMPLING_SETTINGS:
            kind = SAMPLING_SETTINGS[name]
            try:
                changed = self.sampling | {name: kind(value)}
            except ValueError:
                article = "a whole number" if kind is int else "a number"
                raise ValueError(f"{name} must be {article}, got {value!r}") from None
            check_sampling(changed)
            self.sampling = changed
        else:
            known = ", ".join([*SAMPLING_SETTINGS, "thinking"])
            raise ValueError(f"no setting {name!r}; there are {known}")
        return self._settings()

    def _settings(self) -> str:
        thinking = {True: "on", False: "off", None: "auto"}[self.thinking]
        settings = {**self.sampling, "thinking": thinking}
        return ", ".join(f"{name} {value}" for name, value in settings.items())


def _parse_thinking(value: str) -> bool | None:
    choices = {"on": True, "off": False, "auto": None}
    if value not in choices:
        raise ValueError(f"thinking must be on, off or auto, got {value!r}")
    return choices[value]
