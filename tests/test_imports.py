"""Imports point one way: commands → integrations → doors → rollouts → serving → planning → model →
kernels.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxinfer

ROOT = Path(jaxinfer.__file__).parent
COMMANDS = {"generate", "chat", "bench", "convert", "evaluate", "serve", "env", "plan", "__main__"}
ROOMS = {
    "basis": {"basis"},
    "kernels": {"basis", "kernels"},
    "model": {"basis", "kernels", "model"},
    "planning": {"basis", "kernels", "model", "planning"},
    "serving": {"basis", "kernels", "model", "planning", "serving"},
    "rollouts": {"basis", "kernels", "model", "planning", "serving", "rollouts"},
    "doors": {"basis", "kernels", "model", "planning", "serving", "rollouts", "doors"},
    "integrations": {
        "basis",
        "kernels",
        "model",
        "planning",
        "serving",
        "rollouts",
        "doors",
        "integrations",
    },
}
"""What each room may import; the doors are the modules directly in `serving`. Commands and what
they share may import all."""
SERVING = (
    "guided",
    "requests",
    "scheduler",
    "sampling",
    "slots",
    "programs",
    "compile",
    "runner",
    "engine",
    "telemetry",
    "processes",
    "replicas",
    "startup",
    "service",
    "parsers",
    "openai",
)
"""The rooms of `serving`, each of which imports only itself and those before it."""
WITHOUT_JAX = (
    "planning",
    "serving.guided",
    "serving.requests",
    "serving.scheduler",
    "serving.engine",
    "serving.slots",
    "serving.service",
    "serving.telemetry",
    "serving.parsers",
    "serving.openai",
)
MOST_FILES_OF_A_ROOM = 12


def _room(module: str) -> str:
    """Where a module of the package is; one directly in it is a command's or of the basis."""
    _, *parts = module.split(".")
    if not parts or parts[0] in COMMANDS:
        return "commands"
    if parts[0] == "serving" and not (ROOT / "/".join(parts[:2])).is_dir():
        return "doors"
    return parts[0] if (ROOT / parts[0]).is_dir() else "basis"


def _imports(node: ast.AST) -> Iterator[str]:
    """Modules of the package that are imported at run time, in functions too."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                pass
            case ast.Import():
                yield from (alias.name for alias in child.names)
            case ast.ImportFrom(module=str(module)):
                yield from (_module(module, alias.name) for alias in child.names)
            case _:
                yield from _imports(child)


def _module(module: str, name: str) -> str:
    """What ``from module import name`` needs: a module of that name, if there is one.

    The version is the only public name that is not from another module.
    """
    if name == "__version__":
        return "jaxinfer.version"
    path = ROOT.parent / module.replace(".", "/") / name
    is_module = path.is_dir() or path.with_suffix(".py").exists()
    return f"{module}.{name}" if is_module else module


def _graph() -> dict[str, set[str]]:
    graph = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        imported = _imports(ast.parse(path.read_text()))
        graph[name.removesuffix(".__init__")] = {m for m in imported if m.startswith("jaxinfer")}
    return graph


GRAPH = _graph()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_is_below_it(room):
    found = {
        f"{module} imports {other}"
        for module in GRAPH
        if _room(module) == room
        for other in GRAPH[module]
        if _room(other) not in ROOMS[room]
    }
    assert not found


def test_modules_import_each_other_in_no_circle():
    graphlib.TopologicalSorter(GRAPH).prepare()


def _serving_room(module: str) -> int:
    """Where a module of `serving` stands in `SERVING`; the doors directly in it are above all."""
    part = (*module.split("."), "")[2]
    return SERVING.index(part) if part in SERVING else len(SERVING)


def test_rooms_of_serving_import_only_what_is_below_them():
    found = {
        f"{module} imports {other}"
        for module, imported in GRAPH.items()
        for other in imported
        if module.startswith("jaxinfer.serving.") and other.startswith("jaxinfer.serving.")
        if _serving_room(other) > _serving_room(module)
    }
    assert not found
    rooms = {path.name for path in (ROOT / "serving").iterdir() if path.is_dir()}
    assert rooms - {"__pycache__"} == set(SERVING)


@pytest.mark.parametrize("room", WITHOUT_JAX)
def test_what_plans_and_schedules_imports_no_jax(room):
    """In a process of its own: here JAX is imported already."""
    modules = [name for name in GRAPH if name.startswith(f"jaxinfer.{room}.")]
    code = f"import sys, {', '.join(modules)}; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_room_is_crowded():
    crowded = {
        str(folder.relative_to(ROOT)): len(files)
        for folder in ROOT.rglob("*")
        if folder.is_dir() and folder.relative_to(ROOT).parts[0] in ROOMS
        if len(files := [f for f in folder.glob("*.py") if f.name != "__init__.py"])
        > MOST_FILES_OF_A_ROOM
    }
    assert not crowded
