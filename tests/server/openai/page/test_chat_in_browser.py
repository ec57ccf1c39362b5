"""The chat as a reader uses it, in a real browser against a live server."""

import json
import re
import statistics
import time
import urllib.request

import pytest

from tests.server.openai.http_server import serving
from tests.server.openai.page.conversation import (
    answered,
    events,
    part,
    post_chat,
    say,
    set_field,
)
from tests.server.openai.page.scripted_engine import HOSTILE

pytestmark = pytest.mark.browser
SUM = "What is 2 + 3?"
CHAT = "**/v1/chat/completions"


@pytest.fixture
def bodies(page):
    """The bodies of the page's chat requests."""
    seen = []
    page.on("request", lambda request: seen.append(request) if request.post_data else None)
    return lambda: [json.loads(request.post_data) for request in seen]


def becomes_idle(site, seconds=60):
    """Whether the server soon has no request; it hears of a reader's end a moment later."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with urllib.request.urlopen(site + "load") as load:
            if json.load(load) == {"server_load": 0}:
                return True
        time.sleep(0.02)
    return False


def server_says(page, answers):
    """Have the server's next answers be these, each a status and a text."""
    left = list(answers)

    def fulfil(route):
        status, text = left.pop(0)
        kind = "text/event-stream" if status == 200 else "application/json"
        route.fulfill(status=status, content_type=kind, body=text)

    page.route(CHAT, fulfil)


def test_the_bundled_models_answer_is_the_apis_with_its_thinking_folded(page, site):
    set_field(page, "temperature", "0")
    answer = answered(page, SUM)
    whole = post_chat(site, SUM, temperature=0)
    message = whole["choices"][0]["message"]
    thoughts = message["reasoning"]
    assert thoughts.strip()
    assert part(answer, "content").text_content() == message["content"].strip()
    assert part(answer, "thoughts").text_content().strip() == thoughts.strip()
    assert part(answer, "thinking").get_attribute("open") is None
    assert not part(answer, "thoughts").is_visible()
    part(answer, "thinking-title").click()
    assert part(answer, "thoughts").is_visible()
    tokens = whole["usage"]["completion_tokens"]
    line = part(answer, "statistics").text_content()
    assert re.fullmatch(
        rf"{tokens} tokens · [\d.,]+ tok/s · first after [\d.]+ m?s · prompt \d+( \(\d+ cached\))?",
        line,
    )
    # Every token of the text is found, so that each has its alternatives.
    assert (
        "".join(part(answer, "content").locator(".token").all_text_contents())
        == message["content"].strip()
    )


def test_an_answer_grows_until_escape_stops_it(page, site):
    say(page, "slow")
    growing = page.locator(".answer.growing")
    growing.get_by_text("word3").wait_for()
    assert page.get_by_role("button", name="Stop").is_visible()
    assert not page.get_by_role("button", name="Send").is_visible()
    page.keyboard.press("Escape")
    answer = answered(page)
    kept = part(answer, "content").text_content()
    assert kept.startswith("word0 word1 ")
    assert "word399" not in kept
    assert part(answer, "statistics").text_content().endswith("stopped")
    assert becomes_idle(site)
    assert part(answered(page, SUM), "content").text_content()


def seconds_to_a_client(site):
    """Until a client that only reads, as curl does, has the first token."""
    body = {"messages": [{"role": "user", "content": "slow"}], "stream": True}
    request = urllib.request.Request(
        site + "v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if b'"content":"w' in line.replace(b": ", b":"):
                return time.monotonic() - begin
    raise AssertionError("the answer has no text")


def seconds_on_the_page(page):
    """Until a reader who pressed Enter has the first token on the screen."""
    page.fill("#prompt", "slow")
    page.evaluate("""() => {
        window.shown = new Promise((resolve) => {
            let begin
            const start = () => { begin = performance.now() }
            addEventListener("keydown", start, {once: true, capture: true})
            new MutationObserver((_, observer) => {
                const answer = document.querySelector(".answer.growing [data-part=content]")
                if (!answer?.textContent.startsWith("w")) return
                observer.disconnect()
                requestAnimationFrame(() => resolve(performance.now() - begin))
            }).observe(document.body, {childList: true, subtree: true, characterData: true})
        })
    }""")
    page.press("#prompt", "Enter")
    seconds = page.evaluate("() => window.shown") / 1000
    page.keyboard.press("Escape")
    answered(page)
    return seconds


def test_the_first_token_comes_as_soon_as_to_a_client_that_only_reads(page, site):
    pairs = [(seconds_on_the_page(page), seconds_to_a_client(site)) for _ in range(5)]
    shown, read = (statistics.median(each) for each in zip(*pairs, strict=True))
    # It takes some milliseconds more; a loaded machine adds to both.
    assert shown < 2 * read + 0.2


def test_the_stop_button_stops(page):
    say(page, "slow")
    page.locator(".answer.growing").get_by_text("word1").wait_for()
    page.get_by_role("button", name="Stop").click()
    assert "stopped" in part(answered(page), "statistics").text_content()
    assert page.evaluate("document.activeElement.id") == "prompt"


def test_regenerating_asks_the_same_again_in_place(page, bodies):
    answered(page, SUM)
    answered(page, "Tell me a story.")
    assert page.get_by_role("button", name="Regenerate").count() == 1
    page.get_by_role("button", name="Regenerate").click()
    answered(page)
    first, second, third = bodies()
    assert third == second
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert "<think>" not in second["messages"][1]["content"]
    assert len(first["messages"]) == 1
    assert page.locator(".answer").count() == 2


def test_a_tokens_alternatives_are_shown_on_hover(page):
    token = part(answered(page, SUM), "content").locator(".token").first
    box = page.get_by_role("tooltip")
    assert not box.is_visible()
    token.hover()
    rows = box.locator("li")
    assert rows.count() >= 5
    assert box.locator("li.chosen .name").text_content() == token.text_content().replace(" ", "␣")
    shares = [each.text_content() for each in box.locator(".number").all()]
    assert all(re.fullmatch(r"<0\.1%|>99\.9%|\d+\.\d%", share) for share in shares)
    page.mouse.move(5, 5)
    box.wait_for(state="hidden")


def test_a_tokens_alternatives_are_reached_by_arrow_keys(page):
    answer = answered(page, SUM)
    part(answer, "content").focus()
    box = page.get_by_role("tooltip")
    tokens = part(answer, "content").locator(".token")
    last = tokens.count() - 1
    for key, index in (
        ("ArrowRight", 0),
        ("ArrowRight", 1),
        ("End", last),
        ("ArrowLeft", last - 1),
    ):
        page.keyboard.press(key)
        tokens.nth(index).and_(page.locator(".current")).wait_for()
        assert page.locator(".current").count() == 1
        box.wait_for()
    page.keyboard.press("Escape")
    box.wait_for(state="hidden")


def test_what_the_model_writes_is_text(page):
    answer = answered(page, "hostile")
    assert part(answer, "content").text_content() == HOSTILE
    assert answer.locator("img, script, a").count() == 0
    part(answer, "content").locator(".token").nth(3).hover()
    page.get_by_role("tooltip").wait_for()
    assert page.get_by_role("tooltip").locator("img, script, a").count() == 0
    assert page.title() == "jaxinfer"
    say(page, HOSTILE)
    assert page.locator(".said .text").last.text_content() == HOSTILE
    answered(page)


def test_the_policy_lets_no_script_in(open_page):
    """What `open_page` would report is reported."""
    page = open_page()
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'document.title = 1';"
        " document.body.append(s); }"
    )
    assert page.title() == "jaxinfer"
    assert any("Content Security Policy" in fault for fault in open_page.faults)
    open_page.faults.clear()


@pytest.mark.slow("alone")
def test_thinking_without_a_beginning_is_folded_once_it_ends(page):
    answer = answered(page, "late")
    assert part(answer, "thoughts").text_content().strip() == "Thoughts without a beginning."
    assert part(answer, "content").text_content() == "An answer."


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_that_the_server_splits_off_is_folded(page, bodies, name):
    stream = events({name: "Why "}, {name: "not?"}, {"content": "Say </think> aloud."})
    server_says(page, [(200, stream)] * 2)
    answer = answered(page, "hello")
    assert part(answer, "thoughts").text_content() == "Why not?"
    assert part(answer, "content").text_content() == "Say </think> aloud."
    answered(page, "again")
    assert bodies()[1]["messages"][1] == {"role": "assistant", "content": "Say </think> aloud."}


def test_tool_calls_are_shown_and_their_results_sent(page, bodies):
    def call(index, **function):
        return {"tool_calls": [{"index": index, "function": function}]}

    first = {"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "weather"}}]}
    second = {"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "time"}}]}
    stream = (
        events(first, call(0, arguments='{"city": '), call(0, arguments='"Prague"}'), second),
        events({"content": "Sunny."}),
    )
    server_says(page, [(200, each) for each in stream])
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    set_field(page, "tools", json.dumps(tools))
    answer = answered(page, "Weather?")
    assert answer.locator(".tool-call h3").all_text_contents() == ["weather", "time"]
    assert json.loads(answer.locator("pre").first.text_content()) == {"city": "Prague"}
    answer.get_by_label("Result").first.fill("sun")
    answer.get_by_label("Result").last.fill("noon")
    answer.get_by_role("button", name="Send results").click()
    page.get_by_text("Sunny.").wait_for()
    answered(page)
    messages = bodies()[1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["tool_calls"][0] == {
        "id": "c0",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Prague"}'},
    }
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    assert bodies()[0]["tools"] == tools


def test_a_sent_message_is_edited_and_answered_from_there(page, bodies):
    for text in ("One?", "Two?", "Three?"):
        answered(page, text)
    page.get_by_role("button", name="Edit the message").nth(1).click()
    editor = page.get_by_role("textbox", name="Edit the message")
    assert editor.input_value() == "Two?"
    editor.fill("2?")
    editor.press("Shift+Enter")
    editor.press_sequentially("Or 3?")
    editor.press("Enter")
    answered(page)
    assert page.locator(".said .text").all_text_contents() == ["One?", "2?\nOr 3?"]
    assert page.locator(".answer").count() == 2
    assert page.evaluate("document.activeElement.id") == "prompt"
    *_, before, after = bodies()
    assert after["messages"][:2] == before["messages"][:2]
    assert after["messages"][2:] == [{"role": "user", "content": "2?\nOr 3?"}]


def test_an_edit_that_is_cancelled_leaves_all_as_it_was(page, bodies):
    answered(page, "One?")
    before = page.locator("#turns").inner_html()
    edit = page.get_by_role("button", name="Edit the message")
    for end in ("Escape", "Cancel"):
        edit.focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.localName") == "textarea"
        page.keyboard.type("Another")
        if end == "Escape":
            page.keyboard.press(end)
        else:
            page.get_by_role("button", name=end).click()
        assert page.evaluate("document.activeElement.dataset.part") == "edit"
        assert page.locator("#turns").inner_html() == before
    edit.click()
    page.keyboard.press("Control+A")
    page.keyboard.type("  ")
    page.locator(".editor").get_by_role("button", name="Send").click()
    assert page.locator(".editor").is_visible()
    assert len(bodies()) == 1


def test_an_edit_stops_the_answer_that_grows_once_it_is_sent(page, site):
    say(page, "slow")
    page.locator(".answer.growing").get_by_text("word3").wait_for()
    edit = page.get_by_role("button", name="Edit the message")
    edit.click()
    page.keyboard.press("Escape")
    assert page.locator(".answer.growing").count() == 1
    edit.click()
    page.keyboard.press("Control+A")
    page.keyboard.type(SUM)
    page.keyboard.press("Enter")
    page.locator(".said .text", has_text=SUM).wait_for()
    answer = answered(page)
    assert "word" not in part(answer, "content").text_content()
    assert "stopped" not in part(answer, "statistics").text_content()
    assert page.locator(".turn").count() == 2
    assert becomes_idle(site)


def test_results_of_tools_are_not_edited(page):
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}
    server_says(page, [(200, events(call)), (200, events({"content": "Done."}))])
    answer = answered(page, "hello")
    answer.get_by_label("Result").fill("1")
    answer.get_by_role("button", name="Send results").click()
    page.get_by_text("Done.").wait_for()
    assert page.locator(".said").count() == 2
    assert page.get_by_role("button", name="Edit the message").count() == 1


def test_settings_are_sent_and_wrong_ones_are_named(page, bodies):
    set_field(page, "top_p", "0.5")
    set_field(page, "max_tokens", "3")
    set_field(page, "system", "Be brief.")
    answer = answered(page, SUM)
    (body,) = bodies()
    assert (body["top_p"], body["max_tokens"]) == (0.5, 3)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "temperature" not in body
    assert "3 tokens" in part(answer, "statistics").text_content()
    assert part(answer, "statistics").text_content().endswith("ended at the most tokens")
    for name, value, named in (("top_p", "7", "Top p"), ("tools", "{", "Tools")):
        set_field(page, name, value)
        say(page, "no")
        assert named in page.locator("#settings-fault").text_content()
        page.get_by_role("button", name="Reset").click()
        page.keyboard.press("Escape")
    assert len(bodies()) == 1


def test_the_servers_errors_are_shown_and_pass(page):
    refusal = json.dumps({"error": {"message": "too many wait"}})
    broken = f'data: {{"error": {{"message": "it failed"}}}}\n\n{events()}'
    cut = events({"content": "half"}).removesuffix("data: [DONE]\n\n")
    server_says(page, [(503, refusal), (200, broken), (200, cut), (502, "<h1>Bad</h1>")])
    for text in ("too many wait", "it failed", "closed the connection", "answered 502"):
        answer = answered(page, "hello")
        assert text in part(answer, "fault").text_content()
    page.unroute(CHAT)
    page.route(CHAT, lambda route: route.abort())
    assert "can't be reached" in part(answered(page, "hello"), "fault").text_content()
    page.unroute(CHAT)
    page.get_by_role("button", name="Regenerate").click()
    assert part(answered(page), "content").text_content()
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".turn").count() == 0
    assert page.locator("#welcome").is_visible()


def test_the_keyboard_alone_is_enough(page):
    page.keyboard.press("Tab")
    for _ in range(30):
        if page.evaluate("document.activeElement.id") == "prompt":
            break
        page.keyboard.press("Tab")
    page.keyboard.type("What is")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("2 + 3?")
    assert page.input_value("#prompt") == "What is\n2 + 3?"
    page.keyboard.press("Enter")
    answered(page)
    for _ in range(10):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.dataset.part") == "regenerate":
            break
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator(".answer").count() == 1
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-settings"


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(open_page, make_client):
    with serving(make_client(api_keys=("sesame",)).app) as port:
        page = open_page(f"http://127.0.0.1:{port}/")
        dialog = page.get_by_role("dialog", name="This server asks for a key")
        for key in ("wrong", "sesame"):
            dialog.wait_for()
            page.get_by_label("API key", exact=True).fill(key)
            page.keyboard.press("Enter")
            if key == "wrong":
                page.get_by_text("does not know this key").wait_for()
        page.locator("#model-name", has_text="tiny").wait_for()
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        assert "sesame" in page.evaluate("JSON.stringify(sessionStorage)")
        assert part(answered(page, SUM), "content").text_content()
        page.reload()
        page.locator("#model-name", has_text="tiny").wait_for()
        page.get_by_role("button", name="Forget the API key").click()
        say(page, SUM)
        dialog.wait_for()
        page.get_by_role("button", name="Cancel").click()
        assert "asks for an API key" in part(answered(page), "fault").text_content()
        assert page.evaluate("sessionStorage.getItem('jaxinfer-key')") is None
