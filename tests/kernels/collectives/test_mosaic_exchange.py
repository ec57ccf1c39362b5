"""The protocol of exchanges between GPUs, its PTX run on the host with other threads in between."""

import random
import threading
import time
import types

import pytest

from jaxinfer.kernels.collectives.mosaic import instructions
from jaxinfer.kernels.collectives.mosaic import peer_buffer as peer_buffer
from jaxinfer.kernels.collectives.mosaic.peer_buffer import Opened, PeerBuffer
from tests.kernels.collectives.ptx_interpreter import Host

BOX = PeerBuffer(num_devices=2, num_blocks=1, num_lines=3, num_packet_lines=2, line_bytes=16)
BASES = [0x1000, 0x9000]
NAN = 0x7FFF7FFF
SECOND = 10**9


@pytest.fixture
def host(monkeypatch):
    host = Host()
    monkeypatch.setattr(peer_buffer, "ptx", host)
    words = types.SimpleNamespace(andi=lambda a, b: a & b, ori=lambda a, b: a | b)
    monkeypatch.setattr(peer_buffer, "arith", words)
    return host


def _exchange(host, rank, sent, *, as_packets):
    """One GPU's part: what it receives from its partner, a list of lines of four words."""
    (number,) = host.asm(instructions.COUNT, "=r,l", [BASES[rank] + BOX.count(0)], 1)
    bases = tuple((BASES[rank ^ distance], 0) for distance in (0, 1))
    post = peer_buffer._Post(BOX, Opened(0, number, bases))
    (received,) = (
        peer_buffer._packets(1, post, sent) if as_packets else peer_buffer._lines(post, sent)
    )
    return received


def _shares(rank, exchange, count):
    return [[(rank + 1) << 24 | exchange << 8 | 4 * i + k for k in range(4)] for i in range(count)]


def _begin_at(host, count):
    for base in BASES:
        host.memory[base + BOX.count(0)] = count % 2**32


@pytest.mark.parametrize(
    "begin",
    [0, 2**31 - 6, 2**31 + 5, 2**32 - 9],
    ids=["new", "before 2**31", "after 2**31", "before 2**32"],
)
@pytest.mark.parametrize("seed", range(2))
def test_partners_receive_what_was_sent_in_this_exchange(host, begin, seed):
    rng = random.Random(seed)
    _begin_at(host, begin)
    # Mostly packets: lines leave flags behind, and packets do not move them on.
    plan = [(rng.random() < 0.7, rng.randint(1, 2)) for _ in range(12)]
    wrong = []

    def run(rank):
        hesitant = random.Random(seed + rank)
        for i, (as_packets, count) in enumerate(plan):
            time.sleep(hesitant.choice([0, 0, 0.005]))
            received = _exchange(host, rank, _shares(rank, i, count), as_packets=as_packets)
            if received != _shares(1 - rank, i, count):
                wrong.append((rank, i, received))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "an exchange hangs"
    assert not wrong


def test_numbers_take_turns_and_none_is_that_of_unwritten_memory(host):
    host.memory[0] = 2**32 - 4
    numbers = []
    for _ in range(6):
        (number,) = host.asm(instructions.COUNT, "=r,l", [0], 1)
        host.asm(instructions.KEEP, "l,r,r", [0, number, 0])
        numbers.append(number)
    assert numbers == [2**32 - 3, 2**32 - 2, 2**32 - 1, 2, 3, 4]


@pytest.mark.parametrize("number", [2, 2**31 + 7, 2**32 - 1])
@pytest.mark.parametrize("age", [None, 1, 2, 2**31, 2**31 + 1])
@pytest.mark.parametrize("as_packets", [True, False])
def test_what_is_left_of_any_exchange_before_is_waited_past(host, number, age, as_packets):
    """Until the wait gives up: no partner sends anything here."""
    host.clock = _Clock(30 * SECOND)
    _begin_at(host, number - 1 if number != 2 else 2**32 - 1)
    old = 0 if age is None else (number - age) % 2**32
    if old in (number, number + 1):
        pytest.skip("as old as numbers go")
    host.memory[BASES[0] + BOX.flag(1, 0)] = old
    for half, line, word in [(h, i, k) for h in (0, 1) for i in (0, 1) for k in range(4)]:
        host.memory[BASES[0] + BOX.packet(1, half, 0, line) + 8 * word + 4] = old
    received = _exchange(host, 0, _shares(0, 1, 2), as_packets=as_packets)
    assert all(word & NAN == NAN for line in received for word in line)


@pytest.mark.parametrize("number", [3, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_partner_that_is_at_the_next_exchange_already_is_not_waited_for(host, number):
    host.clock = _Clock(30 * SECOND)
    _begin_at(host, number - 1)
    expected = _shares(1, 1, 2)
    for i, words in enumerate(expected):
        place = BASES[0] + BOX.line(1, number % 2, 0, i)
        host.memory.update({place + 4 * k: word for k, word in enumerate(words)})
    host.memory[BASES[0] + BOX.flag(1, 0)] = 2 if number == 2**32 - 1 else number + 1
    assert _exchange(host, 0, _shares(0, 1, 2), as_packets=False) == expected


def test_a_wait_gives_up_after_its_time_and_those_after_it_at_once(host):
    clock = host.clock = _Clock(SECOND // 2)
    before = clock.now
    first = _exchange(host, 0, _shares(0, 1, 2), as_packets=True)
    assert first == [[NAN] * 4] * 2
    # Four waits, of which only the first one took its time.
    assert 20 * SECOND < clock.now - before < 23 * SECOND
    before = clock.now
    received = _exchange(host, 0, _shares(0, 2, 2), as_packets=False)
    assert all(word & NAN == NAN for line in received for word in line)
    assert clock.now - before <= SECOND


def test_a_gpu_that_gave_up_waits_as_long_as_ever_a_while_later(host):
    clock = host.clock = _Clock(SECOND // 2)
    _exchange(host, 0, _shares(0, 1, 1), as_packets=True)
    clock.now += 2 * SECOND
    before = clock.now
    _exchange(host, 0, _shares(0, 2, 1), as_packets=True)
    assert clock.now - before > 20 * SECOND


class _Clock:
    """Goes on by `step` nanoseconds at each look."""

    def __init__(self, step):
        self.now, self.step = 10**18, step

    def __call__(self):
        self.now += self.step
        return self.now
