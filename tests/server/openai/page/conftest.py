"""A server of the page on loopback and a browser that looks at it."""

import contextlib
from pathlib import Path

import pytest

from tests.server.openai.http_server import serving
from tests.server.openai.page.conversation import post_chat
from tests.server.openai.page.scripted_engine import ScriptedEngine

CHROMIUM = Path("/usr/bin/chromium")
_ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser():
    """Chromium; its profile is new and goes with it. Nothing but loopback can be reached."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright (pip install playwright)"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM} (apt-get install chromium)")
    # Closed with the module: while it is open, no other event loop runs in this thread.
    with playwright.sync_playwright() as driver:
        arguments = [
            *_ARGUMENTS.split(),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(browser, make_client, engine):
    """The URL of a server with the bundled model, and with scripts."""
    with serving(make_client(ScriptedEngine(engine)).app) as port:
        url = f"http://127.0.0.1:{port}/"
        # Compiles what the page's requests run, which takes longer than a reader waits.
        post_chat(url, "hello", logprobs=True, top_logprobs=5)
        yield url


@pytest.fixture
def open_page(browser, site):
    """Opens the page in a context of its own; it must log no error and violate no policy."""
    faults = []

    with contextlib.ExitStack() as contexts:

        def open_page(url=site, **options):
            context = contexts.enter_context(browser.new_context(**options))
            context.set_default_timeout(20_000)
            context.on("weberror", lambda error: faults.append(str(error.error)))
            page = context.new_page()
            page.on("console", lambda said: faults.append(said.text) if is_fault(said) else None)
            page.goto(url)
            return page

        open_page.faults = faults
        yield open_page
    assert faults == []


def is_fault(said):
    """Whether a console message is an error of the page, and not of an answer that it shows."""
    return said.type in ("error", "warning") and "Failed to load resource" not in said.text


@pytest.fixture
def page(open_page):
    """The page, with its model's name there."""
    page = open_page()
    page.locator("#model-name", has_text="tiny").wait_for(state="attached")
    return page
