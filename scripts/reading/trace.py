"""The package's functions that run in an action, in order of their first call."""

import inspect
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jax._src import monitoring

import jaxinfer

PACKAGE = Path(jaxinfer.__file__).parent


class Called(NamedTuple):
    """A function that ran.

    Attributes:
        file: its path in the package.
        name: its qualified name; what is nested in a function counts as that function.
        depth: how many of the package's functions were above it at its first call.
        thread: name of the thread of that call.
    """

    file: str
    name: str
    depth: int
    thread: str


def trace(action: Callable[[], Any]) -> list[Called]:
    """The functions of the package that run in an action, in any thread; imports don't count."""
    first: dict[tuple[str, str], Called] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_ours(frame.f_code) or _listens(frame):
            return
        place = _place(frame.f_code)
        if place not in first and not place[1].startswith("<"):  # a lambda of a module
            first[place] = Called(*place, _depth(frame), threading.current_thread().name)

    threading.setprofile_all_threads(note)
    try:
        action()
    finally:
        threading.setprofile_all_threads(None)
    return list(first.values())


def files_of(called: Iterable[Called]) -> list[str]:
    """The files of functions, in order of the first call of each."""
    return list(dict.fromkeys(each.file for each in called))


def lines_of(files: Iterable[str]) -> int:
    """Lines of files of the package, comments and blank ones included."""
    return sum(len((PACKAGE / file).read_text().splitlines()) for file in files)


def _is_ours(code: CodeType) -> bool:
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # unlike a module's or a class's body
    return is_function and code.co_filename.startswith(str(PACKAGE))


def _place(code: CodeType) -> tuple[str, str]:
    return str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname.split(".<locals>")[0]


def _depth(frame: FrameType) -> int:
    above: set[tuple[str, str]] = set()
    each = frame.f_back
    while each is not None:
        if _is_ours(each.f_code):
            above.add(_place(each.f_code))
        each = each.f_back
    return len(above - {_place(frame.f_code)})


def _listens(frame: FrameType | None) -> bool:
    """Whether a listener to JAX's events runs, which may be that of any engine of this process."""
    while frame is not None:
        if frame.f_code.co_filename == monitoring.__file__:
            return True
        frame = frame.f_back
    return False
