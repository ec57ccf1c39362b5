"""The pictures in docs/memory.md are of the newest record, and its table has every owner."""

from scripts.docs.tables import latest, memory_table
from scripts.measurements.memory import FIGURES, pictures
from scripts.measurements.results import load_results

RECORDS = load_results()


def test_the_files_are_what_the_script_draws():
    for name, text in pictures(RECORDS).items():
        assert (FIGURES / name).read_text() == text, "run: python -m scripts.measurements.memory"


def test_the_page_shows_them_with_words_for_readers_who_see_no_pictures():
    page = (FIGURES.parent / "memory.md").read_text()
    for name in pictures(RECORDS):
        (line,) = [line for line in page.splitlines() if f"figures/{name}" in line]
        assert len(line.removeprefix("![").split("](")[0]) > 100


def test_a_row_says_where_each_number_comes_from():
    newest = latest(RECORDS, "memory")[-1]
    lines = memory_table([newest])
    generating = next(line for line in lines if "| generating |" in line)
    step = newest["report"]["phases"][-1]["holdings"][-1]
    assert step["owner"] == "step temporaries"
    assert f"| {step['num_bytes'] / 1e6:,.1f} ({step['source']}) |" in generating


def test_the_page_says_that_a_gpus_record_is_missing_until_there_is_one():
    cpu = latest(RECORDS, "memory")[-1]
    assert "--memory" in memory_table([cpu])[-1]
    gpu = cpu | {"machine": cpu["machine"] | {"device": "NVIDIA H200"}}
    assert "| 1 x NVIDIA H200 |" in memory_table([cpu, gpu])[-1]
    assert memory_table([])[0] == "Not measured yet."
