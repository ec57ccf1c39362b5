"""Markdown of answers: what it becomes, that nothing hostile comes of it, and that it may grow."""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.server.openai.page.conversation import answered, events, part
from tests.server.openai.page.scripted_engine import HOSTILE, MARKED

pytestmark = pytest.mark.browser

# What an element holds, in a line: elements with what tells them apart, and texts.
_OUTLINE = """(element) => {
  const visit = (node) => {
    if (node.nodeType === 3) return node.data;
    if (node.matches(".code-head")) return `[${node.firstChild.textContent}]`;
    const inner = [...node.childNodes].map(visit).join("");
    if (node.matches("div")) return inner;
    const marks = ["href", "title", "value", "class"].filter((name) => node.hasAttribute(name));
    const said = marks.map((name) => ` ${name}=${node.getAttribute(name)}`).join("");
    return `<${node.localName}${said}>${inner}</${node.localName}>`;
  };
  return [...element.childNodes].map(visit).join("");
}"""
_PARTS = """(element) => {
  const all = [...element.querySelectorAll("*")];
  const links = all.filter((each) => each.localName === "a");
  const shown = element.cloneNode(true);
  shown.querySelectorAll("button").forEach((each) => each.remove());
  return {
    names: all.map((each) => each.localName),
    attributes: all.flatMap((each) =>
      each.getAttributeNames().map((name) => `${each.localName} ${name}`)),
    links: links.map((each) => [new URL(each.href).protocol, each.rel, each.target]),
    text: shown.textContent,
    spelled: links.map((each) => each.getAttribute("href") + each.title).join(""),
  };
}"""
_COUNT = "(element, records) => records.reduce((sum, each) => sum + each.addedNodes.length, 0)"


def laid_out(page, answers, what):
    """What JavaScript says of the elements of some answers, each of which comes in pieces."""
    return page.evaluate(
        f"""async (answers) => {{
          const what = {what};
          const {{ Markdown }} = await import("/page/chat/markdown/markdown.js");
          return answers.map((pieces) => {{
            const element = document.createElement("div");
            const observer = new MutationObserver(() => {{}});
            observer.observe(element, {{ childList: true, subtree: true }});
            const markdown = new Markdown(element);
            for (const text of pieces) markdown.add([{{ text, entries: null }}]);
            markdown.end();
            return what(element, observer.takeRecords());
          }});
        }}""",
        answers,
    )


MARKDOWN = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# A\n### B *b*\n####### no": "<h3>A</h3><h5>B <em>b</em></h5><p>####### no</p>",
    "#no\n# ": "<p>#no\n# </p>",
    "- a\n- b\n  - c\n\n  d\n* e": (
        "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li></ul>"
        "<ul><li><p>e</p></li></ul>"
    ),
    "3. a\n\n4. b\n   - c\n1) d": (
        "<ol><li value=3><p>a</p></li><li value=4><p>b</p><ul><li><p>c</p></li></ul></li></ol>"
        "<ol class=parentheses><li value=1><p>d</p></li></ol>"
    ),
    # Models indent by two spaces below numbers, and write fences below items without any.
    "1. a\n  - b\n2. c": (
        "<ol><li value=1><p>a</p><ul><li><p>b</p></li></ul></li><li value=2><p>c</p></li></ol>"
    ),
    "- a\n  ```py\nb\n\n  c\n```\n- d": (
        "<ul><li><p>a</p>[py]<pre><code>b\n\nc</code></pre></li><li><p>d</p></li></ul>"
    ),
    "It was\n1986. And 2.\n5.": "<p>It was\n1986. And 2.\n5.</p>",
    "5.": "<p>5.</p>",
    "1986. A year": "<ol><li value=1986><p>A year</p></li></ol>",
    "```python x\na *b*\n\n  <c>\n```\nd": (
        "[python x]<pre><code>a *b*\n\n  <c></code></pre><p>d</p>"
    ),
    "~~~\n```\n~~\n~~~~": "[]<pre><code>```\n~~</code></pre>",
    "```js\nno end": "[js]<pre><code>no end</code></pre>",
    "``` a `b`": "<p>``` a <code>b</code></p>",
    "    a\n\n      b\nc": "[]<pre><code>a\n\n  b</code></pre><p>c</p>",
    "> a\nb\n>\n> > c\n\nd": (
        "<blockquote><p>a\nb</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>"
    ),
    "a\n---\n* * *\nb": "<p>a</p><hr></hr><hr></hr><p>b</p>",
    "x\n|a|*b*|\n|-|:-:|\n| `c \\| d` | e \\| f |\n|g|\n\nh": (
        "<p>x</p><table><thead><tr><th>a</th><th class=center><em>b</em></th></tr></thead>"
        "<tbody><tr><td> <code>c | d</code> </td><td class=center> e | f </td></tr>"
        "<tr><td>g</td></tr></tbody></table><p>h</p>"
    ),
    "a | b\n--|--:\n1 | 2": (
        "<table><thead><tr><th>a </th><th class=right> b</th></tr></thead>"
        "<tbody><tr><td>1 </td><td class=right> 2</td></tr></tbody></table>"
    ),
    "|a|b|\n|-|": "<p>|a|b|\n|-|</p>",
    "**a *b* c** _d_ __e__ ***f*** ~~g~~ ~h~": (
        "<p><strong>a <em>b</em> c</strong> <em>d</em> <strong>e</strong> "
        "<em><strong>f</strong></em> <del>g</del> ~h~</p>"
    ),
    "2 * 3 * 4, snake_case_name, **open, *a **b*": (
        "<p>2 * 3 * 4, snake_case_name, **open, *a *<em>b</em></p>"
    ),
    "**a**b, a**b**, *(a)*.": "<p><strong>a</strong>b, a<strong>b</strong>, <em>(a)</em>.</p>",
    "`a*b*` ``c`d`` ` e ` `f": ("<p><code>a*b*</code> <code>c`d</code> <code>e</code> `f</p>"),
    r"\*a\* \\ \_b\_ C:\dir \(a_1 * b_1 * c\) \[d\] $$*e*$$": (
        r"<p>*a* \ _b_ C:\dir \(a_1 * b_1 * c\) \[d\] $$*e*$$</p>"
    ),
    '[*a*](https://b.c/d_(e) "f") <https://g.h>': (
        "<p><a href=https://b.c/d_(e) title=f><em>a</em></a> <a href=https://g.h>https://g.h</a></p>"
    ),
    "See https://a.b/c_d_(e), (http://f.g). **https://h.i**": (
        "<p>See <a href=https://a.b/c_d_(e)>https://a.b/c_d_(e)</a>, "
        "(<a href=http://f.g>http://f.g</a>). <strong><a href=https://h.i>https://h.i</a></strong></p>"
    ),
    "[a](mailto:b@c.d) ![e](https://f.g/h.png)": (
        "<p><a href=mailto:b@c.d>a</a> <a href=https://f.g/h.png>e</a></p>"
    ),
    "*a [b* c](https://d.e)*": "<p><em>a <a href=https://d.e>b* c</a></em></p>",
    "<b onclick=x>&lt;&amp;</b><br>": "<p><b onclick=x>&lt;&amp;</b><br></p>",
}
"""Markdown, and the outline of what it becomes."""


_NO_LINKS = [
    *("javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "\x01javascript:x"),
    *("data:text/html,x", "vbscript:x", "blob:x", "file:///etc/passwd", "https:x", "https://"),
    *("http://[", "/v1/models", "//a.b/c", "v1/models", "#settings", "?x"),
]


def test_markdown_becomes_elements(page):
    shown = laid_out(page, [[text] for text in MARKDOWN], _OUTLINE)
    assert dict(zip(MARKDOWN, shown, strict=True)) == MARKDOWN


def test_an_address_that_is_no_link_stays_text(page):
    forms = ("[x]({})", "![x]({})", "<{}>", "[x](<{}>)", "{}")
    texts = [form.format(address) for form in forms for address in _NO_LINKS]
    texts = [text for text in texts if text[0] != "#"]
    shown = laid_out(page, [[text] for text in texts], _OUTLINE)
    assert shown == [f"<p>{text}</p>" for text in texts]


_MARKS = [
    *"abé家🏠 \n\n\t*_~`[]()<>|#->+\\!$:.1\"'&;\r\x00",
    *("    ", "- ", "1. ", "> ", "# ", "---", "|-|-|\n", "|a|b|\n", "[x](https://c.d 'e')"),
    *("**", "~~", "```", "~~~", "](", "$$", "\\(", "\\)", "<script>", "</div>", "{{x}}"),
    *("javascript:alert(1)", "https://a.b/", "mailto:a@b.c", "data:text/html,x"),
    *("<img src=x onerror=y>", "![i](data:image/svg+xml,x)"),
]
_TEXTS = st.lists(st.sampled_from(_MARKS), max_size=40).map("".join)
_MANY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_ALLOWED = {
    "p": "", "h3": "", "h4": "", "h5": "", "h6": "", "ul": "", "blockquote": "", "hr": "",
    "em": "", "strong": "", "del": "", "code": "", "span": "", "table": "", "thead": "",
    "tbody": "", "tr": "", "li": "value", "ol": "class", "th": "class scope", "td": "class",
    "a": "href target rel title", "pre": "tabindex role aria-label",
    "div": "class tabindex role aria-label", "button": "type class data-part",
}  # fmt: skip
"""Elements, and what attributes they may have."""


@given(st.lists(_TEXTS, min_size=1, max_size=8))
@example([HOSTILE])
@_MANY
def test_no_text_becomes_anything_but_these_elements_and_no_letter_is_lost(page, texts):
    for text, parts in zip(texts, laid_out(page, [[text] for text in texts], _PARTS), strict=True):
        assert set(parts["names"]) <= _ALLOWED.keys()
        allowed = {f"{name} {each}" for name, some in _ALLOWED.items() for each in some.split()}
        assert set(parts["attributes"]) <= allowed
        for link in parts["links"]:
            assert link[0] in ("http:", "https:", "mailto:")
            assert link[1:] == ["noopener noreferrer", "_blank"]
        wanted, shown, spelled = (
            [letter for letter in each if letter.isalpha()]
            for each in (text, parts["text"], parts["spelled"])
        )
        rest = iter(wanted)
        assert all(letter in rest for letter in shown), "not in the order in which they came"
        assert not Counter(wanted) - Counter(shown) - Counter(spelled)


@given(st.lists(_TEXTS, min_size=1, max_size=8), st.integers(0, 2**32))
@_MANY
def test_an_answer_that_grows_becomes_what_it_would_be_at_once(page, texts, seed):
    source = random.Random(seed)

    def cut(text):
        places = sorted(source.sample(range(len(text) + 1), source.randint(0, len(text))))
        return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]

    whole = laid_out(page, [[text] for text in texts], _OUTLINE)
    assert laid_out(page, [cut(text) for text in texts], _OUTLINE) == whole
    assert laid_out(page, [list(text) for text in texts], _OUTLINE) == whole


_GROWING = {
    "paragraph": "word *and* more `code` ",
    "open marks": "*a **b [c `d ",
    "lines": "a line of text\n",
    "list": "- an item\n",
    "nested list": "- an item\n  - within\n",
    "code": "    a = 1\n",
    "fence": "```\na = 1\n",
    "table": "|a|b|\n|-|-|\n",
    "a long row": "|a|b|\n|-|-|\nword ",
    "quote": "> a quote\n",
    "headings": "# A\n",
    "brackets": "[[[",
    "deep": "> - ",
    "nothing": "   ",
    "dashes": "- ",
    "long runs": "a *****",
}


def test_twice_as_long_an_answer_takes_twice_the_nodes(page):
    answers = [[text] * count for text in _GROWING.values() for count in (300, 600)]
    added = laid_out(page, answers, _COUNT)
    for name, once, twice in zip(_GROWING, added[::2], added[1::2], strict=True):
        assert twice < 2.5 * once + 1000, name


def test_an_answer_is_copied_and_sent_as_the_model_wrote_it(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    text = "# A\n\n**b**\n\n```py\nc = 1\n\nd = 2\n```\n- e"
    stream = events(*({"content": letter} for letter in text))
    bodies = []

    def fulfil(route):
        bodies.append(route.request.post_data_json)
        route.fulfill(content_type="text/event-stream", body=stream)

    page.route("**/v1/chat/completions", fulfil)
    answer = answered(page, "hello")
    assert part(answer, "content").locator("h3, strong, pre, li").count() == 4
    copied = "navigator.clipboard.readText()"
    part(answer, "copy-code").click()
    answer.get_by_text("Copied").wait_for()
    assert page.evaluate(copied) == "c = 1\n\nd = 2"
    part(answer, "copy").click()
    page.wait_for_function(f"async (text) => (await {copied}) === text", arg=text)
    answered(page, "again")
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": text}


def test_tokens_within_marks_have_alternatives_and_the_source_shows_all(page):
    answer = answered(page, "marked")
    content = part(answer, "content")
    shown = "Some bold words andan itemx = 1"
    assert "".join(content.locator(".token").all_text_contents()) == shown
    content.locator("strong .token").first.hover()
    page.get_by_role("tooltip").wait_for()
    assert content.get_attribute("aria-describedby") == "alternatives"
    content.focus()
    page.keyboard.press("End")
    content.locator("pre .token.current").wait_for()
    content.locator("pre").focus()
    page.keyboard.press("ArrowRight")  # scrolls the code
    frame = "new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
    page.evaluate(frame)
    assert content.locator(".current").count() == 0
    source = answer.get_by_role("button", name="Source")
    source.click()
    assert source.get_attribute("aria-pressed") == "true"
    assert content.text_content() == MARKED
    assert "".join(content.locator(".token").all_text_contents()) == MARKED
    source.click()
    assert source.get_attribute("aria-pressed") == "false"
    assert content.locator("li code").text_content() == "item"


def test_thinking_is_laid_out_too(page):
    stream = events({"reasoning": "1. *Why*\n2. not"}, {"content": "So"}, {"reasoning": "- more"})
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=stream),
    )
    answer = answered(page, "hello")
    assert part(answer, "thoughts").locator("li").all_text_contents() == ["Why", "not", "more"]
    assert part(answer, "content").text_content() == "So"
