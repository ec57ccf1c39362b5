"""How the whole page looks: on a phone, in both themes, to assistive tools."""

import json

import pytest

from tests.server.openai.page.conversation import answered, events, part

pytestmark = pytest.mark.browser

# The contrast of each text with what is behind it, as WCAG 2 defines it.
_CONTRASTS = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const pixel = (colors) => {
    pen.fillStyle = "#fff";
    pen.fillRect(0, 0, 1, 1);
    for (const color of colors) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map(
      (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    const isField = element.matches("input, textarea, select");
    if (!(own || isField) || !element.checkVisibility() || element.closest(".unseen")) continue;
    const behind = [];
    for (let each = element; each; each = each.parentElement) {
      behind.unshift(getComputedStyle(each).backgroundColor);
    }
    const kinds = element.matches("textarea") ? [null, "::placeholder"] : [null];
    for (const kind of kinds) {
      const a = light(pixel(behind));
      const b = light(pixel([...behind, getComputedStyle(element, kind).color]));
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      found.push([ratio, element.outerHTML.slice(0, 80)]);
    }
  }
  return found;
}"""
_UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, [tabindex]")]
  .filter((e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim() ||
                   e.getAttribute("aria-labelledby")))
  .map((e) => e.outerHTML)"""
# What can be pressed and is below 44 pixels; a link within a sentence is as high as its line.
_SMALL = """() => [...document.querySelectorAll(
    "button, select, summary, a, input, textarea, [role=button], [role=tab]")]
  .filter((e) => e.checkVisibility() && !e.closest(".unseen") && !e.matches(".answer .text a"))
  .map((e) => e.matches("[type=checkbox]") ? e.labels[0] : e)
  .map((e) => [e.outerHTML.slice(0, 80), e.getBoundingClientRect()])
  .filter(([, box]) => Math.min(box.width, box.height) < 43.99)
  .map(([what, box]) => `${what} is ${box.width} x ${box.height}`)"""
_OVERFLOW = """() => [...document.querySelectorAll("body *")]
  .filter((e) => e.checkVisibility() && !e.matches(".unseen, .unseen *, .brand *, pre *, .table *"))
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5 ||
                 e.getBoundingClientRect().left < -0.5)
  .map((e) => e.outerHTML.slice(0, 80))"""


def everything(page):
    """Have the page show all that it has, one view after the other."""
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    marked = "# A\n\n- https://b.c/ *d*\n\n> `e`\n\n```py\n" + "f " * 99 + "\n```\n"
    marked += "|g|h|\n|-|-|\n|" + "i" * 99 + "|j|\n"
    texts = [
        events({"reasoning_content": "Why?"}, {"content": "An answer. " * 40 + marked}, call),
        json.dumps({"error": {"message": "no"}}),
    ]

    def fulfil(route):
        text = texts.pop(0)
        status, kind = (200, "text/event-stream") if texts else (400, "application/json")
        route.fulfill(status=status, content_type=kind, body=text)

    yield "welcome"
    answered(page, "late")
    part(page.locator(".answer"), "content").locator(".token").first.click()
    yield "alternatives"
    page.route("**/v1/chat/completions", fulfil)
    answered(page, "x" * 300)
    answered(page, "and an error")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    yield "answers"
    page.locator("[data-part=edit]").last.click()
    yield "editor"
    page.keyboard.press("Escape")
    page.click("#open-settings")
    yield "settings"
    page.keyboard.press("Escape")
    page.evaluate("document.getElementById('key-dialog').showModal()")
    yield "key"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_is_readable_and_every_control_named(open_page, theme):
    page = open_page(color_scheme=theme, reduced_motion="reduce")
    for view in everything(page):
        contrasts = page.evaluate(_CONTRASTS)
        assert len(contrasts) > 8
        assert [what for ratio, what in contrasts if ratio < 4.5] == [], view
        assert page.evaluate(_UNNAMED) == [], view
        assert page.evaluate("document.getAnimations().length") == 0, view
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(250, 250, 248)", "dark": "rgb(19, 21, 23)"}[theme]


def test_a_phone_needs_no_scrolling_to_the_side(open_page):
    phone = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}
    page = open_page(**phone, reduced_motion="reduce")
    for view in everything(page):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        assert page.evaluate(_OVERFLOW) == [], view
        if view == "answers":
            composer = page.locator("#composer").bounding_box()
            assert composer["y"] + composer["height"] <= 640


@pytest.mark.parametrize(
    "screen",
    [
        {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True},
        {"viewport": {"width": 1024, "height": 768}, "is_mobile": True, "has_touch": True},
        {"viewport": {"width": 390, "height": 844}},
    ],
    ids=["phone", "tablet", "narrow window"],
)
def test_a_finger_has_44_pixels_to_press(open_page, screen):
    page = open_page(**screen, reduced_motion="reduce", permissions=["clipboard-write"])
    page.evaluate("document.getElementById('forget-key').hidden = false")
    # As it is before the names of the models have come.
    page.locator("#model-name:not(:empty)").wait_for(state="attached")
    page.evaluate("document.getElementById('model').replaceChildren()")
    page.evaluate("document.getElementById('model').hidden = false")
    for view in everything(page):
        assert page.evaluate(_SMALL) == [], view
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


@pytest.mark.parametrize(("width", "height"), [(1280, 640), (390, 844), (844, 390), (360, 240)])
def test_the_buttons_of_the_settings_are_always_in_view(open_page, width, height):
    page = open_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page.click("#open-settings")
    settings = page.locator("#settings")
    settings.locator("[name=top_p]").fill("7")
    buttons = [settings.get_by_role("button", name=name) for name in ("Close", "Reset", "Done")]
    for place in ("start", "end"):
        settings.locator(".sheet-body > *").nth(
            0 if place == "start" else -1
        ).scroll_into_view_if_needed()
        for button in buttons:
            box = button.bounding_box()
            assert box["y"] >= 0, place
            assert box["y"] + box["height"] <= height, place
            assert box["x"] + box["width"] <= width
        assert settings.get_by_text("Top p:").is_visible()
    # Nothing lies above them, either.
    settings.get_by_role("button", name="Reset").click()
    settings.get_by_role("button", name="Done").click()
    assert not settings.is_visible()


def test_the_chosen_theme_stays(open_page):
    page = open_page(color_scheme="light")
    toggle = page.get_by_role("button", name="Dark theme")
    assert toggle.get_attribute("aria-pressed") == "false"
    toggle.click()
    for _ in range(2):
        assert toggle.get_attribute("aria-pressed") == "true"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(19, 21, 23)"
        page.reload()


def test_what_has_the_focus_is_outlined(page):
    for _ in range(8):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "() => { const s = getComputedStyle(document.activeElement);"
            " return [s.outlineStyle, s.outlineWidth]; }"
        )
        assert style == ["solid", "2px"]


def test_a_growing_answer_is_read_out_in_sentences(page):
    heard = "() => { const r = document.getElementById('announcer'); window.heard = [];"
    heard += " new MutationObserver(() => window.heard.push(r.textContent))"
    heard += ".observe(r, { childList: true, characterData: true, subtree: true }); }"
    page.evaluate(heard)
    stream = events({"content": "One. T"}, {"content": "wo. Thr"}, {"content": "ee"})
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=stream),
    )
    answered(page, "hello")
    page.get_by_role("status").get_by_text("complete").wait_for(state="attached")
    said = " ".join(page.evaluate("window.heard"))
    assert said.endswith("Three The answer is complete.")
    assert "One." in said
