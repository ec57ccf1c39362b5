"""`jaxinfer serve` as a user starts it: a process, its children, its port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import psutil
from openai import OpenAI

OPTIONS = ["--port", "0", "--max-num-seqs", "4", "--num-kv-blocks", "200", "--max-model-len", "800"]
PROMPT = "Once upon a time"


class RunningService:
    """A service that has said that it is ready.

    Args:
        options: flags beside `OPTIONS`; the last of a kind wins.
        environment: variables beside this process's.

    Attributes:
        process: the command.
        lines: what it has written to standard error so far.
        url: of its port.
    """

    def __init__(self, *options, environment=None):
        command = [sys.executable, "-m", "jaxinfer.serve", *OPTIONS, *options]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.wait_for_line(r"(http://[^/]+)/v1 with model (\S+)", 60)[1]

    @property
    def client(self):
        """OpenAI's client, which tries nothing twice."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)

    def wait_for_line(self, pattern, seconds):
        """The match of the first line that has it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            if not self._reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no line with {pattern!r} in {self.lines}")

    def children(self, name=""):
        """Its processes, or only the one whose module's name has that in it."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if name in " ".join(child.cmdline())]

    def health(self):
        """The status of `/health`."""
        return httpx.get(f"{self.url}/health", timeout=60).status_code

    def metric(self, name):
        """A metric's value."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text  # a step may compile
        return float(re.search(rf"^jaxinfer:{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)[1])

    def stream(self, max_tokens=700):
        """A long stream that has begun."""
        chunks = self.client.completions.create(
            model="jaxinfer",
            prompt=PROMPT,
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(chunks)
        return chunks

    def close(self):
        """End it, however it stands, and what is left of it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in [*self.children(), psutil.Process(self.process.pid)]:
                child.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
