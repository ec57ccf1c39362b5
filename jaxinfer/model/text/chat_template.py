"""Turns a conversation into the prompt text a model was trained on, by the model's template."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

Role = Literal["system", "developer", "user", "assistant", "tool"]
"""Whose turn a message is. A template may name others, and a developer's message is written as the
system's by one that does not name it."""

Message = Mapping[str, Any]
"""`role` and `content`, as in OpenAI's chat format; plain JSON data."""

_CPU_SECONDS = 5.0
_MAX_CHARS = 8 << 20
_LONG_CHARS = 1 << 19
_PIPE_BYTES = 1 << 16
_WORKER_PROGRAM = pathlib.Path(__file__).with_name("template_worker.py")
_CUT = "<<<jaxinfer: continue here>>> "  # templates that trim messages lose its space
_REASONING_NAMES = ("reasoning", "reasoning_content")


class ChatTemplate:
    """A Jinja chat template, rendered under time, memory and output limits.

    The template runs in a sandboxed Jinja environment inside a child process (started at the first
    use, ended by `close`), so that a hostile template costs at most five seconds of CPU time, 1 GiB
    and one error message. Long conversations have a child process of their own, so that others do
    not wait for them.

    Args:
        special_tokens: `bos_token`, `eos_token`, … for the template to use.
        origin: the file it came from, named in error messages.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str):
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._origin = origin
        self._worker, self._worker_for_long = _Worker(), _Worker()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in another process perhaps, has a child process of its own."""
        return ChatTemplate, (self.source, self._special_tokens, self._origin)

    def render(
        self,
        messages: Sequence[Any],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation.

        Args:
            messages: dictionaries with `role`, one of `Role` or one that the template names, and
                `content` (a string or a list of text parts), which all but a user's may leave out.
            add_generation_prompt: end with the opening of an assistant turn.
            continue_final_message: leave the last message open, for the model to go on with it.
            enable_thinking: handed to the template when not None.
            tools: JSON schemas of the functions that the model may call.
            variables: further names for the template.

        Raises:
            TypeError: the messages, tools or variables are not plain JSON data.
            ValueError: a role is not known, a user's message has no content, both ways to end the
                prompt are asked for, or the template refuses, fails, or exceeds a limit.
        """
        if add_generation_prompt and continue_final_message:
            raise ValueError(
                "add_generation_prompt and continue_final_message exclude each other; "
                "set add_generation_prompt=False to continue the final message"
            )
        conversation = [
            _plain_message(i, message, self.source) for i, message in enumerate(messages)
        ]
        if not conversation:
            raise ValueError("messages is empty; give at least one message")
        if continue_final_message:
            conversation[-1]["content"] = _final_content(conversation[-1]) + _CUT
        names: dict[str, Any] = {**self._special_tokens, **variables}
        names |= {"messages": conversation, "add_generation_prompt": add_generation_prompt}
        names["tools"] = list(tools) if tools else None
        if enable_thinking is not None:
            names["enable_thinking"] = enable_thinking
        text = self._run(names)
        return _cut_after_final_message(text) if continue_final_message else text

    def close(self) -> None:
        """End the child process, if there is one; safe to call again."""
        self._worker.stop()
        self._worker_for_long.stop()

    def _run(self, names: Mapping[str, Any]) -> str:
        request = {
            "template": self.source,
            "variables": names,
            "cpu_seconds": _CPU_SECONDS,
            "max_chars": _MAX_CHARS,
        }
        try:
            line = json.dumps(request)
        except (TypeError, ValueError) as error:
            raise TypeError(f"messages and tools must be plain JSON data: {error}") from None
        worker = self._worker if len(line) <= _LONG_CHARS else self._worker_for_long
        answer = worker.ask(line)
        if answer is None:
            raise ValueError(
                f"chat template of {self._origin}: it took more than {_CPU_SECONDS:g} s of CPU time"
            )
        reply = json.loads(answer)
        if "error" in reply:
            raise ValueError(f"chat template of {self._origin}: {reply['error']}")
        return reply["text"]


def _plain_message(index: int, message: Any, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"messages[{index}] must be a dict with 'role' and 'content'")
    if not isinstance(message.get("role"), str):
        raise TypeError(f"messages[{index}] needs a 'role' that is a string")
    plain = dict(message)
    role, content = plain["role"], plain.get("content")
    if role not in get_args(Role) and not _names_role(template, role):
        roles = ", ".join(get_args(Role))
        raise ValueError(f"messages[{index}]: unknown role {role[:100]!r}; roles are {roles}")
    if role == "user" and content is None:
        raise ValueError(f"messages[{index}]: a user message needs 'content'")
    if role == "developer" and not _names_role(template, role):
        plain["role"] = "system"
    if isinstance(content, (list, tuple)):
        plain["content"] = "\n".join(_part_text(index, part) for part in content)
    elif content is not None and not isinstance(content, str):
        raise TypeError(f"messages[{index}]: 'content' must be a string or a list of text parts")
    given = next((plain[name] for name in _REASONING_NAMES if plain.get(name)), None)
    if given is not None:
        for name in _REASONING_NAMES:
            plain.setdefault(name, given)
    return plain


def _names_role(template: str, role: str) -> bool:
    """Whether a template compares something with a role, as it does with a message's."""
    compared = rf"(?:[!=]=|\bin\b)[^%}}]*['\"]{re.escape(role)}['\"]"
    return bool(role) and re.search(compared, template) is not None


def _part_text(index: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return part["text"]
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ValueError(f"messages[{index}]: a content part of type {kind!r} is not text")


def _final_content(message: Mapping[str, Any]) -> str:
    if not isinstance(message.get("content"), str):
        raise ValueError("continue_final_message: the last message has no text to continue")
    return message["content"]


def _cut_after_final_message(text: str) -> str:
    place = text.rfind(_CUT.rstrip())
    if place < 0:
        raise ValueError("continue_final_message: the template left the last message out")
    return text[:place] if text.startswith(_CUT, place) else text[:place].rstrip()


class _Worker:
    """The child process: started when needed, one request at a time, replaced after it died.

    A process that was forked from this one gets a child of its own: answers of a shared one would
    reach whoever reads first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize | None = None
        _workers.add(self)

    def ask(self, line: str) -> str | None:
        """The answer to one request line; None if the process was ended by a limit."""
        with self._lock:
            process = self._process or self._start()
            try:
                answer = _exchange(process, line)
            except BrokenPipeError:
                answer = ""
            except BaseException:  # Ctrl-C between question and answer: the pair is broken
                process.kill()
                self._stop_locked()
                raise
            if not answer:
                self._stop_locked()
                return None
            return answer

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self._stop_locked()

    def leave_to_parent(self) -> None:
        """Right after a fork, in the new process: begin without a child."""
        process, finalizer = self._process, self._finalizer
        self._lock = threading.Lock()  # a thread that is not in this process may hold the old one
        self._process = self._finalizer = None
        if finalizer is not None:
            finalizer.detach()
        if process is not None:
            _close_pipes(process)
            process.returncode = 0  # it is the parent's to wait for

    def _start(self) -> subprocess.Popen[bytes]:
        # Only the search path is passed on: the template's process has no business with tokens
        # that the environment may hold. Its own session keeps the terminal's Ctrl-C away from it.
        # Pipes have no buffer, which a fork would copy, together with its lock.
        with _starting:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUTF8": "1"},
                start_new_session=True,
            )
        self._finalizer = weakref.finalize(self, _end, self._process)
        return self._process

    def _stop_locked(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


_workers: "weakref.WeakSet[_Worker]" = weakref.WeakSet()
# Held across forks: a process that is forked while another starts would keep that one's pipes open.
_starting = threading.RLock()


def _after_fork_in_child() -> None:
    _starting.release()
    for worker in list(_workers):
        worker.leave_to_parent()


os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_after_fork_in_child,
)


def _exchange(process: subprocess.Popen[bytes], line: str) -> str:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the chat template's process was started without pipes")
    unsent = memoryview(line.encode() + b"\n")
    while unsent:
        unsent = unsent[process.stdin.write(unsent) :]
    pieces: list[bytes] = []
    while not pieces or not pieces[-1].endswith(b"\n"):
        piece = process.stdout.read(_PIPE_BYTES)
        if not piece:  # it has ended, in the middle of an answer perhaps
            return ""
        pieces.append(piece)
    return b"".join(pieces).decode()


def _end(process: subprocess.Popen[bytes]) -> None:
    _close_pipes(process)
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
