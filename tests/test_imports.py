"""Imports point one way, those for type checkers too: commands → cli → measure → evaluation →
integrations → server → testing → doors → rollouts → serving → profiling → planning → model →
kernels.
"""

import ast
import functools
import graphlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxinfer
from jaxinfer import __main__

ROOT = Path(jaxinfer.__file__).parent
COMMANDS = {"generate", "chat", "embed", "bench", "convert", "serve", "launch", "env", "plan"}
COMMANDS |= {"profile", "pull", "list", "rm", "evaluate"}
COMMANDS |= {"__main__"}
ROOMS = (
    "basis",
    "kernels",
    "model",
    "planning",
    "profiling",
    "serving",
    "rollouts",
    "doors",
    "testing",
    "server",
    "integrations",
    "evaluation",
    "measure",
    "cli",
    "commands",
)
"""Each imports only itself and earlier rooms; the doors are the modules directly in `serving`."""
SERVING = (
    "threads",
    "constraints",
    "parsers",
    "requests",
    "prefix_tiers",
    "scheduler",
    "sampling",
    "slots",
    "programs",
    "compile",
    "runner",
    "engine",
    "driver",
    "processes",
    "replicas",
    "recording",
    "inspection",
    "startup",
    "beams",
    "pooling",
)
SERVER = ("telemetry", "service", "openai", "anthropic")
"""The rooms of `serving` and of `server`, each of which imports only itself and earlier rooms."""
WITHOUT_JAX = (
    "model.families",
    "planning",
    "profiling",
    "serving.threads",
    "serving.constraints",
    "serving.requests",
    "serving.scheduler",
    "serving.engine",
    "serving.driver",
    "serving.slots",
    "serving.parsers",
    "server.telemetry",
    "server.service",
    "server.openai",
    "server.anthropic",
)
MOST_FILES_OF_A_FOLDER = 21


def _room(module: str) -> str:
    """Where a module of the package is; one directly in it is a command's or of the basis."""
    _, *parts = module.split(".")
    if not parts or parts[0] in COMMANDS:
        return "commands"
    if parts[0] == "serving" and not (ROOT / "/".join(parts[:2])).is_dir():
        return "doors"
    return parts[0] if (ROOT / parts[0]).is_dir() else "basis"


def _imports(node: ast.AST) -> Iterator[str]:
    """Modules that are imported, in functions and for type checkers too."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                yield from (alias.name for alias in child.names)
            case ast.ImportFrom(module=str(module)):
                yield from (_module(module, alias.name) for alias in child.names)
            case _:
                yield from _imports(child)


def _module(module: str, name: str) -> str:
    """What ``from module import name`` needs: a module of that name, if there is one.

    A public name of the package is another module's, but for the version, which needs nothing.
    """
    if module == "jaxinfer" and name in jaxinfer.__all__:
        return f"jaxinfer.{jaxinfer._HOMES.get(name, 'version')}"
    path = ROOT.parent / module.replace(".", "/") / name
    is_module = path.is_dir() or path.with_suffix(".py").exists()
    return f"{module}.{name}" if is_module else module


@functools.cache
def _graph() -> dict[str, set[str]]:
    graph = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        imported = _imports(ast.parse(path.read_text()))
        graph[name.removesuffix(".__init__")] = {m for m in imported if m.startswith("jaxinfer")}
    return graph


def _upward(room: str) -> set[str]:
    below = ROOMS[: ROOMS.index(room) + 1]
    return {
        f"{module} imports {other}"
        for module, imported in _graph().items()
        if _room(module) == room
        for other in imported
        if _room(other) not in below
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_is_below_it(room):
    assert not _upward(room)


@pytest.mark.parametrize("room", ["requests", "scheduler", "runner", "engine"])
def test_the_loop_knows_constraints_by_their_protocol_alone(room):
    found = {
        f"{module} imports {other}"
        for module, imported in _graph().items()
        for other in imported
        if module.startswith(f"jaxinfer.serving.{room}.")
        if other.startswith("jaxinfer.serving.constraints")
    }
    assert {line.split()[-1] for line in found} <= {"jaxinfer.serving.constraints.constraint"}


def test_rollouts_know_no_engine():
    """A door's `generate` is given to them."""
    modules = {module: each for module, each in _graph().items() if _room(module) == "rollouts"}
    assert len(modules) > 3
    assert not {m for imported in modules.values() for m in imported if "serving" in m}


def test_every_module_is_in_a_room():
    assert set(map(_room, _graph())) == set(ROOMS)


def test_modules_import_each_other_in_no_circle():
    graphlib.TopologicalSorter(_graph()).prepare()


def _inner_room(module: str, rooms: tuple[str, ...]) -> int:
    """Where a module of a room stands among the rooms in it; those directly in it are above all."""
    part = (*module.split("."), "")[2]
    return rooms.index(part) if part in rooms else len(rooms)


@pytest.mark.parametrize(("outer", "rooms"), [("serving", SERVING), ("server", SERVER)])
def test_rooms_in_a_room_import_only_what_is_below_them(outer, rooms):
    found = {
        f"{module} imports {other}"
        for module, imported in _graph().items()
        for other in imported
        if module.startswith(f"jaxinfer.{outer}.") and other.startswith(f"jaxinfer.{outer}.")
        if _inner_room(other, rooms) > _inner_room(module, rooms)
    }
    assert not found
    folders = {path.name for path in (ROOT / outer).iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(rooms)


@pytest.mark.parametrize("room", WITHOUT_JAX)
def test_what_plans_and_schedules_imports_no_jax(room):
    """In a process of its own: here JAX is imported already."""
    modules = [name for name in _graph() if name.startswith(f"jaxinfer.{room}.")]
    code = f"import sys, {', '.join(modules)}; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def _shelf(file: Path) -> str:
    """The folder of a file; directly in `jaxinfer` are two, of commands and of public values."""
    folder = file.parent.relative_to(ROOT.parent).as_posix()
    return f"{folder}: commands" if file.parent == ROOT and file.stem in COMMANDS else folder


@pytest.mark.parametrize("top", ["jaxinfer", "scripts"])
def test_no_folder_is_crowded(top):
    files = [
        path
        for path in (ROOT.parent / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if path.name not in ("__init__.py", "py.typed")
    ]
    counts = Counter(map(_shelf, files))
    assert len(counts) > 3
    assert not {shelf: n for shelf, n in counts.items() if n > MOST_FILES_OF_A_FOLDER}


def test_commands_are_what_the_program_offers():
    assert {*__main__.COMMANDS, "__main__"} == COMMANDS
