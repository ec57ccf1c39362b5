"""The built documentation: every public name once, every page in reach, links that lead on."""

import re
from collections import Counter
from pathlib import Path

import pytest

import jaxinfer
from jaxinfer import evaluation, planning
from scripts.docs.hooks import DOCS, GENERATED, without_outside_links

NAVIGATION = (DOCS.parent / "mkdocs.yml").read_text()


def test_every_public_name_is_on_one_page_of_the_reference():
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    assert Counter(re.findall(r"^::: jaxinfer\.(\w+)$", pages, re.MULTILINE)) == Counter(
        jaxinfer.__all__
    )


@pytest.mark.parametrize("room", [planning, evaluation], ids=["planning", "evaluation"])
def test_every_name_of_a_public_room_is_on_its_page(room):
    name = room.__name__.removeprefix("jaxinfer.")
    page = (DOCS / "api" / f"{name}.md").read_text()
    listed = re.findall(rf"^::: jaxinfer\.{name}\.(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(room.__all__)


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r"^ +- ([\w/-]+\.md)$", NAVIGATION, re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *GENERATED])


def test_nothing_is_fetched_by_a_page():
    assert "  font: false" in NAVIGATION
    assert "://" not in NAVIGATION


def test_a_link_to_source_becomes_text():
    page = DOCS / "notes" / "cpu.md"
    text = "[kernels](../../jaxinfer/kernels/choice.py) of [tasks](../tasks/README.md#a)"
    assert without_outside_links(text, page) == "kernels of [tasks](../tasks/README.md#a)"


def test_a_link_to_what_a_page_is_generated_from_leads_to_that_page():
    page = DOCS / "notes" / "cpu.md"
    text = "[promises](../../tests/behaviours.md)"
    assert without_outside_links(text, page) == "[promises](../behaviours.md)"


def test_every_link_between_pages_leads_to_a_file():
    """Also where the repository is browsed, which has no generated pages."""
    for page in DOCS.rglob("*.md"):
        targets = re.findall(r"(?<!!)\[[^\]]*\]\(([\w./-]+\.md)[^)\s]*\)", page.read_text())
        assert [each for each in targets if not (page.parent / each).exists()] == [], page


def test_a_link_to_source_that_is_not_there_is_a_warning(caplog: pytest.LogCaptureFixture):
    assert without_outside_links("[gone](../jaxinfer/gone.py)", DOCS / "page.md") == "gone"
    assert "page.md links to ../jaxinfer/gone.py, which is not there" in caplog.text


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_link_to_source_leads_somewhere(page: Path, caplog: pytest.LogCaptureFixture):
    without_outside_links(page.read_text(), page)
    assert not caplog.records


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_a_list_items_later_paragraphs_are_indented_by_four(page: Path):
    # Markdown as mkdocs reads it ends the list otherwise, and the items that follow are no list.
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    assert re.findall(r"\n\n {1,3}\S.*", text) == []
