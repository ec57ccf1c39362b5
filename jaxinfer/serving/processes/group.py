"""A group of processes that run one engine: their messages, and their common end."""

import atexit
import contextlib
import json
import os
import platform
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.errors import DistributedError, StepError
from jaxinfer.serving.processes.channel import Channel, Message, encode

PEER_TIMEOUT_S = 60.0
_PING_S = 10.0
# Time for a process to report another one's failure as an exception before it just ends.
_GRACE_S = 10.0
_NOTICE_S = 2.0  # until a connection to a process that has died is known to be gone
_PING = encode({"kind": "ping"})


@dataclass(frozen=True)
class Peer:
    """Another process and the connection to it.

    Attributes:
        process_id: which one it is.
        name: for people.
        channel: leads there.
    """

    process_id: int
    name: str
    channel: Channel


def own_name(process_id: int) -> str:
    """What this process calls itself in messages."""
    return f"process {process_id} (pid {os.getpid()} on {platform.node()})"


class ProcessGroup:
    """One engine's processes: a star around process 0, watched from the first moment.

    A process that dies ends all others at once: collectives that wait for it would never end. One
    that fails in good order is an exception in the others, where they look for messages, and ends
    any process that does not look within seconds.

    Args:
        process_id: which process this is.
        num_processes: how many there are.
        peers: on process 0 all others, in order; elsewhere process 0.
    """

    def __init__(self, process_id: int, num_processes: int, peers: list[Peer]) -> None:
        self.process_id = process_id
        self.num_processes = num_processes
        self._peers = peers
        self._inbox: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._failure: str | None = None
        self._ending = threading.Event()
        self._grace: threading.Timer | None = None
        # Held from the arrival of a failure until it is passed on, before this process parts.
        self._noting = threading.Lock()
        for peer in peers:
            self._spawn(self._receive_all, peer)
        self._spawn(self._ping)
        atexit.register(self.close)  # before JAX's own hook, which waits for all processes

    @property
    def leads(self) -> bool:
        """Whether this is process 0."""
        return self.process_id == 0

    @property
    def is_ending(self) -> bool:
        """Whether the processes part, or one has failed."""
        return self._ending.is_set()

    def agree(self, topic: str, value: Any) -> list[Any]:
        """Every process's value, in order of process ids; all processes call it.

        Args:
            topic: names the exchange.
            value: plain JSON data.

        Raises:
            DistributedError: another process has failed; says which and why.
        """
        mine = {"kind": "value", "topic": topic, "value": value}
        if not self.leads:
            self.send(mine)
            return self._expect("values", topic)["value"]
        values = {0: value}
        while len(values) < self.num_processes:
            message = self._expect("value", topic)
            values[message["from"]] = message["value"]
        ordered = [values[i] for i in range(self.num_processes)]
        self.send({"kind": "values", "topic": topic, "value": ordered})
        return ordered

    def require_same(
        self, description: Mapping[str, Any], fix: str = "start all of them alike"
    ) -> None:
        """Raise on every process, naming the first difference, unless all describe the same.

        Args:
            description: plain JSON data, by name.
            fix: what the error asks for.

        Raises:
            DistributedError: names what differs, and the processes.
        """
        # Through JSON, as the others' came: it makes tuples lists.
        everyone = self.agree("description", json.loads(json.dumps(description)))
        for name in dict.fromkeys(name for each in everyone for name in each):
            for i, other in enumerate(everyone):
                first, own = everyone[0].get(name), other.get(name)
                if own != first:
                    raise DistributedError(
                        f"processes differ in {name}: process 0 has {first!r}, process {i} has "
                        f"{own!r}; {fix}"
                    )

    def send(self, message: Message) -> None:
        """Send a message to all followers, or from one of them to process 0.

        Raises:
            DistributedError: another process has failed; says which and why.
        """
        self.check()
        self._send_all(encode(message))

    def next_message(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message, in order of arrival; None if there is none in time.

        It has "from", the process that sent it; its kind is "closed" when that one has parted.

        Raises:
            DistributedError: another process has failed; says which and why.
        """
        try:
            sender, message = self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None
        if message["kind"] == "failed":
            self.check()
        return {**message, "from": sender}

    def check(self) -> None:
        """Raise what another process has reported, or this one has.

        Raises:
            DistributedError: says which process failed and why.
        """
        if self._failure is not None:
            self._call_off_the_end()
            raise DistributedError(self._failure)

    def fail(self, reason: str) -> None:
        """Tell the others that this process can't go on; they end."""
        if not self._ending.is_set():
            self._ending.set()
            text = f"process {self.process_id}: {reason}"
            self._failure = self._failure or text  # nothing is sent from here any more
            self._send_all(encode({"kind": "failed", "text": text}))

    @contextlib.contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Report any exception inside to the other processes."""
        try:
            yield
        except KeyboardInterrupt:
            self.fail("interrupted (Ctrl-C)")
            raise
        except BaseException as error:
            if isinstance(error, StepError):
                # A step fails, too, when another process has died, and may do so before that is
                # noticed here: then `_lose` ends this process, and says which one it was.
                self._ending.wait(_NOTICE_S)
            self.fail(" ".join(str(error).split()) or type(error).__name__)
            raise

    def close(self) -> None:
        """Part in good order: followers are told to stop. Safe to call again."""
        atexit.unregister(self.close)
        self._call_off_the_end()
        if not self._ending.is_set():
            if not self.leads:
                self.fail("it closed its engine while process 0 still runs")
            else:
                self._ending.set()
                self._send_all(encode({"kind": "stop"}))
        for peer in self._peers:
            peer.channel.finish()

    def _expect(self, kind: str, topic: str) -> dict[str, Any]:
        message = self.next_message()
        if message is None or (message["kind"], message.get("topic")) != (kind, topic):
            raise DistributedError(f"expected the {kind} of {topic}, got {message!r:.100}")
        return message

    def _send_all(self, encoded: bytes) -> None:
        for peer in self._peers:
            try:
                peer.channel.send(encoded)
            except OSError:
                self._lose(peer)

    def _receive_all(self, peer: Peer) -> None:
        """Take in what a peer sends until it ends, in a thread of its own."""
        try:
            while True:
                message = peer.channel.receive()
                if message.get("kind") != "ping":
                    self._receive(peer, message)
        except (OSError, EOFError, ValueError):
            self._lose(peer)
            peer.channel.close()
            self._inbox.put((peer.process_id, {"kind": "closed"}))

    def _receive(self, peer: Peer, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "died":
            self._end(message["text"])
        if kind == "failed":
            self._note_failure(peer, message["text"])
        if kind == "stop":
            self._ending.set()
        self._inbox.put((peer.process_id, message))

    def _note_failure(self, peer: Peer, text: str) -> None:
        """Pass on that a process has failed, and end this one unless it says so in time."""
        with self._noting:
            self._failure = text
            if self._ending.is_set():
                return
            self._ending.set()
            self._grace = threading.Timer(_GRACE_S, self._end, (text,))
            self._grace.daemon = True
            self._grace.start()
            for other in self._peers:
                if other is not peer:
                    with contextlib.suppress(OSError):
                        other.channel.send(encode({"kind": "failed", "text": text}))

    def _call_off_the_end(self) -> None:
        with self._noting:
            if self._grace is not None:
                self._grace.cancel()

    def _lose(self, peer: Peer) -> None:
        """End this process, and have the others end, because a peer is gone without a word."""
        if self._ending.is_set():
            return
        text = f"{peer.name} has died or can't be reached"
        for other in self._peers:
            if other is not peer:
                with contextlib.suppress(OSError):
                    other.channel.send(encode({"kind": "died", "text": text}))
        self._end(text)

    def _end(self, text: str) -> None:
        """End this process at once: its main thread may wait in a collective for ever."""
        line = f"jaxinfer: {text}; process {self.process_id} of {self.num_processes} ends too"
        print(line, file=sys.stderr, flush=True)
        os._exit(1)

    def _ping(self) -> None:
        while not self._ending.wait(_PING_S):
            self._send_all(_PING)

    def _spawn(self, run: Any, *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, name="jaxinfer-peer", daemon=True).start()
