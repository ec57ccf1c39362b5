"""The picture in docs/rl.md is the one that the script draws, for light and for dark screens."""

import xml.etree.ElementTree as ET

from scripts.docs.who_holds_what import END, FILE, PHASES, ROWS, draw


def test_the_file_is_what_the_script_draws():
    assert FILE.read_text() == draw(), "run: python -m scripts.docs.who_holds_what"


def test_the_page_shows_it_with_words_for_readers_who_see_no_pictures():
    page = (FILE.parents[1] / "rl.md").read_text()
    (line,) = [line for line in page.splitlines() if f"figures/{FILE.name}" in line]
    assert len(line.removeprefix("![").split("](")[0]) > 100


def test_every_colour_of_the_light_picture_has_one_for_the_dark():
    text = draw()
    light, dark = text.split("@media (prefers-color-scheme: dark) {")
    for name in (".page", "text", ".inside", ".rule", ".trainer", ".engine", ".host", ".flow"):
        assert f"  {name} {{" in light
        assert f"    {name} {{" in dark


def test_spans_lie_within_the_loop_and_do_not_overlap():
    assert len(PHASES) == END
    for row in ROWS:
        borders = [border for span in row.spans for border in (span.first, span.end)]
        assert borders == sorted(borders)
        assert all(0 <= span.first < span.end <= END for span in row.spans)
    ET.fromstring(draw())
