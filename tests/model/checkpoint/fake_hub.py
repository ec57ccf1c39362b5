"""A hub on a loopback port: models with their cards, redirects, gates and cut connections."""

import contextlib
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "c0ffee" + "0" * 34
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rope_theta": 10_000.0,
}
_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4)


@dataclass
class FakeModel:
    """What the hub has of a model, by revision.

    Attributes:
        files: contents by name, those that end in .safetensors by LFS.
        card: of the model card, or None.
        is_gated: whether files are refused.
        revisions: names of its only commit.
    """

    files: dict[str, bytes]
    card: dict[str, object] | None = field(default_factory=lambda: {"license": "apache-2.0"})
    is_gated: bool = False
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)


def plain_files(**config: object) -> dict[str, bytes]:
    """A model's files with its weights, and some that an engine does not read."""
    return {
        "config.json": json.dumps(CONFIG | config).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "README.md": b"a card",
        "pytorch_model.bin": b"a pickle",
    }


class FakeHub:
    """The server.

    Attributes:
        models: by hub id.
        fetched: names of the files whose contents were sent, in order.
        fails: names of files at which connections are cut.
        is_down: whether every answer is a 503.
    """

    def __init__(self) -> None:
        self.models: dict[str, FakeModel] = {}
        self.fetched: list[str] = []
        self.fails: set[str] = set()
        self.is_down = False
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """End it; connections to it are then refused."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        kind, _, rest = path.partition("/")
        if self.hub.is_down:
            self._send(503, {"error": "maintenance"})
        elif kind == "api":
            self._describe(rest.removeprefix("models/"))
        else:
            name, _, place = path.partition("/resolve/")
            self._file(name, *place.split("/", 1), with_body=with_body)

    def _found(self, name: str, revision: str) -> FakeModel | None:
        model = self.hub.models.get(name)
        if model is None:
            self._send(401, {"error": "Invalid username"}, code="RepoNotFound")
        elif revision not in model.revisions:
            self._send(404, {"error": "Invalid rev id"}, code="RevisionNotFound")
            return None
        return model

    def _describe(self, rest: str) -> None:
        name, _, revision = rest.partition("/revision/")
        name, is_tree, commit = name.partition("/tree/")
        model = self._found(name, commit or revision or "main")
        if model is None:
            return
        if is_tree:
            self._send(200, [{"type": "file", **_entry(*item)} for item in model.files.items()])
            return
        siblings = [{**_entry(*item), "rfilename": item[0]} for item in model.files.items()]
        siblings = [{**each, "blobId": each["oid"]} for each in siblings]
        what = {"id": name, "sha": COMMIT, "siblings": siblings, "cardData": model.card}
        self._send(200, what)

    def _file(self, name: str, revision: str, file: str, *, with_body: bool) -> None:
        model = self._found(name, revision)
        if model is None:
            return
        if model.is_gated:
            self._send(403, {"error": "Access to it is restricted"}, code="GatedRepo")
            return
        content = model.files[file]
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{_digest(file, content)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body and file in self.hub.fails:
            self.close_connection = True
        elif with_body:
            self.hub.fetched.append(file)
            self.wfile.write(content)

    def _send(self, status: int, value: object, code: str = "") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _digest(name: str, content: bytes) -> str:
    make = hashlib.sha256 if name.endswith(".safetensors") else hashlib.sha1
    return make(content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "path": name,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
    if name.endswith(".safetensors"):
        digest = _digest(name, content)
        entry["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 1}
    return entry


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """A hub that huggingface_hub talks to in this process, and an empty cache."""
    hub = FakeHub()
    use_cache(monkeypatch, cache)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    try:
        yield hub
    finally:
        hub.close()


def use_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Make a directory the cache of huggingface_hub in this process."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def add_cached(
    cache: Path, name: str, files: dict[str, bytes], commit: str = COMMIT, ref: str = "main"
) -> Path:
    """Put a snapshot into a cache as huggingface_hub does; returns its directory."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    for each in (snapshot, folder / "blobs", folder / "refs"):
        each.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        blob = folder / "blobs" / _digest(file, content)
        blob.write_bytes(content)
        (snapshot / file).symlink_to(Path("..", "..", "blobs", blob.name))
    (folder / "refs" / ref).write_text(commit)
    return snapshot
