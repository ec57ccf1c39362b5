"""The page's files: served without a key, under a strict policy, and nothing else beside them."""

import re
import tomllib
from pathlib import Path, PurePath

import pytest

import jaxinfer
from jaxinfer.server.openai.page.files import PAGE_PATHS, page_file

STATIC = Path(jaxinfer.__file__).parent / "server/openai/page/static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def test_every_file_is_listed_and_every_listed_one_is_there():
    assert sorted(PAGE_PATHS.values()) == [path.relative_to(STATIC).as_posix() for path in FILES]
    assert set(PAGE_PATHS) == {"/"} | {f"/page/{n}" for n in PAGE_PATHS.values()} - {
        "/page/index.html"
    }


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_a_file_is_served_under_the_policy(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.content == (STATIC / PAGE_PATHS[path]).read_bytes()
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
    suffix = PAGE_PATHS[path].rpartition(".")[2]
    assert answer.headers["content-type"] == f"{kind[suffix]}; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    head = client.send("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")


def test_a_file_that_a_browser_has_is_not_sent_again(client):
    first = client.get("/")
    headers = {"If-None-Match": first.headers["etag"]}
    again = client.get("/", headers=headers)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == POLICY
    assert client.get("/page/style.css", headers=headers).status_code == 200


def test_files_need_no_key_and_all_else_does(make_client):
    locked = make_client(api_keys=("sesame",))
    for path in PAGE_PATHS:
        assert locked.get(path).status_code == 200, path
    near = ["/page", "/page/", "/page/index.html", "/page/none.js", "/page/../metrics"]
    for path in [*near, "/v1/models", "/metrics", "/page/chat/%2e%2e/%2e%2e/files.py"]:
        assert locked.get(path).status_code == 401, path


@pytest.mark.parametrize(
    "path",
    ["/page/files.py", "/page/../files.py", "/page/%2e%2e/files.py", "/page/%2Fetc/passwd"],
)
def test_no_other_file_is_served(client, path):
    assert client.get(path).status_code == 404
    with pytest.raises(KeyError):
        page_file(path)


def test_without_the_page_there_is_nothing_at_its_paths(make_client):
    for keys, status in ((), 404), (("sesame",), 401):
        bare = make_client(page=False, api_keys=keys)
        assert {bare.get(path).status_code for path in PAGE_PATHS} == {status}


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere_and_no_text_becomes_markup(file):
    text = file.read_text()
    # The names of XML's vocabularies are no addresses.
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(https?:)?//[\w-]+\.\w|@import|url\(", text)
    markup = "innerHTML|outerHTML|insertAdjacentHTML|document.write|DOMParser|createContextual"
    assert not re.search(rf"{markup}|eval\(|new Function|setHTML|srcdoc", text)
    if file.suffix == ".html":
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|<style", text)


def test_modules_import_only_files_that_are_served():
    for file in FILES:
        for name in re.findall(r'from "(.+?)"', file.read_text()):
            target = (file.parent / name).resolve().relative_to(STATIC.resolve()).as_posix()
            assert target in PAGE_PATHS.values(), f"{file.name} imports {name}"
    loaded = re.findall(r'(?:src|href)="(?!data:)(.+?)"', (STATIC / "index.html").read_text())
    assert len(loaded) > 4
    assert {f"/{path}" for path in loaded} <= set(PAGE_PATHS)


def test_the_wheel_takes_every_file():
    """Hatchling packs all of a package but what git ignores or the project excludes."""
    root = STATIC.parents[4]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel == {"targets": {"wheel": {"packages": ["jaxinfer"]}}}
    ignored = [line for line in (root / ".gitignore").read_text().split() if line]
    parts = {part for path in FILES for part in path.relative_to(root).parts}
    assert not [line for line in ignored if any(PurePath(p).match(line.strip("/")) for p in parts)]
