"""Notebooks of the examples: as their programs are now, and they run."""

import json

import pytest

from scripts.docs.notebooks import CALLS, EXAMPLES, notebook

SHORTER = {"train()": "train(num_steps=2, n=2)"}
"""What a test runs in place of minutes."""


@pytest.mark.parametrize("name", CALLS)
def test_a_notebook_is_what_its_program_makes(name):
    file = EXAMPLES / f"{name}.ipynb"
    assert file.read_text() == notebook(name), "run: python -m scripts.docs.notebooks"


@pytest.mark.parametrize("name", CALLS)
def test_a_notebook_is_small_and_has_every_definition_of_its_program(name):
    cells = json.loads(notebook(name))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert not any(cell.get("outputs") for cell in cells)
    assert len(cells) <= 16
    program = (EXAMPLES / f"{name}.py").read_text()
    names = {line.split("(")[0] for line in program.splitlines() if line.startswith("def ")}
    assert names - {"def main"} <= {line.split("(")[0] for line in code.splitlines()}
    assert "__main__" not in code
    assert "argparse.ArgumentParser" not in code


@pytest.mark.slow("each")
@pytest.mark.parametrize("name", CALLS)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient, of '.[light]'")
    import nbformat

    text = notebook(name)
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    loaded = nbformat.reads(text, as_version=4)
    client = nbclient.NotebookClient(
        loaded, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises what a cell raises
    printed = "".join(
        output.get("text", "") for cell in loaded.cells for output in cell.get("outputs", ())
    )
    expected = {"steering": "layer 3: probe 100 %, islands 0 %", "lora_grpo": "step   2  reward"}
    assert expected[name] in printed
