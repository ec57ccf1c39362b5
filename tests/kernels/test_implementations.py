"""Every implementation that the table names is there, and nothing is found by a made-up name."""

import ast
import importlib.util
import subprocess
import sys
import typing
from operator import attrgetter
from pathlib import Path

import pytest

import jaxinfer
from jaxinfer.kernels.choice import RANKINGS, Backend
from jaxinfer.kernels.implementations import MODULES, Op, module_of

_PACKAGE = Path(jaxinfer.__file__).parent
_FUNCTIONS = {
    "decode": ["paged_decode_attention"],
    "prefill": ["paged_prefill_attention"],
    "norm_rope_write": ["norm_rope_write"],
    "small": ["norm_project", "norm_gated", "project_add", "project", "project_sum_add"],
    "medium": ["project", "gated"],
    "medium_codes": ["supports", "project", "gated", "multiply"],
    "large": ["supports", "project", "gated", "multiply"],
    "experts": [
        "choose.choose",
        "few_rows.gated",
        "few_rows.project_add",
        "few_rows_codes.gated",
        "few_rows_codes.project_add",
        "fused.gated_project",
        "grouped.gated",
        "grouped.project",
        "grouped_codes.gated",
        "grouped_codes.project",
        "lists.choose_and_list",
        "lists.list_experts",
        "places.place",
        "spread.spread",
        "spread_codes.spread",
    ],
    "add_norm": ["add_norm"],
    "add_norm_codes": ["supports", "add_norm_codes"],
    "silu_mul": ["silu_mul"],
    "all_reduce": ["all_reduce", "all_reduce_norm"],
}
# The files with a table of whole names, and what they import of it.
_TABLES = {"implementations.py": "MODULES[backend][op]", "table.py": "found"}
_ENTRIES = [(backend, op) for backend, modules in MODULES.items() for op in modules]
# `import jax_triton` fails on a JAX without a GPU, so its modules are read, not imported.
_FROM_SOURCE = {
    "jaxinfer.kernels.attention.triton.decode",
    "jaxinfer.kernels.attention.triton.prefill",
}


@pytest.mark.parametrize(("backend", "op"), _ENTRIES)
def test_every_entry_holds_the_functions_of_its_op(backend, op):
    name = MODULES[backend][op]
    if name in _FROM_SOURCE:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text())
        held = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert held >= set(_FUNCTIONS[op])
    else:
        module = module_of(backend, op)
        assert all(callable(attrgetter(function)(module)) for function in _FUNCTIONS[op])


def test_every_backend_attends_and_writes_pages():
    assert set(MODULES) == set(typing.get_args(Backend))
    assert set(_FUNCTIONS) == set(typing.get_args(Op))
    assert all({"decode", "prefill", "norm_rope_write"} <= set(each) for each in MODULES.values())
    assert all(set(ranking.order) <= set(MODULES) for ranking in RANKINGS.values())


@pytest.mark.parametrize("room", ["kernels", "serving", "server", "model"])
def test_modules_are_imported_by_names_that_a_search_finds(room):
    for path in (_PACKAGE / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                assert path.name in _TABLES, f"{path}: {ast.unparse(node)}"
                assert ast.unparse(node.args[0]) == _TABLES[path.name]


def test_all_of_a_backend_is_imported_by_a_process_that_traced_nothing():
    """What a start from the program store does before it compiles."""
    code = (
        "import sys\n"
        "from jaxinfer.kernels.implementations import MODULES, import_all\n"
        "assert not any('mosaic' in name for name in sys.modules)\n"
        "import_all('mosaic')\n"
        "assert set(MODULES['mosaic'].values()) <= set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
