"""Memory of one GPU that others write to, and the exchange of a block's registers through it.

Pallas has references to other GPUs' buffers only through a service that exchanges addresses at each
launch, with a barrier on the host. Here addresses are data.

A few lines travel as *packets*: every 8 bytes hold 4 of data and the number of the exchange, which
the reader looks for, so that nothing has to be waited for but the data. (NCCL's "LL" protocol does
the same.) More lines travel as they are, and a flag follows them. PTX's memory model orders that: a
release at system scope after a barrier covers what all threads of the block wrote, and so for
acquire.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir.dialects import arith

from jaxinfer.kernels.collectives.mosaic import instructions
from jaxinfer.kernels.mosaic import ptx
from jaxinfer.kernels.mosaic.pages import Ref, RegisterLayout, Scalar
from jaxinfer.kernels.mosaic.ptx import Word

type Offset = Any
"""A number of bytes, or of blocks: a `Word` in a kernel, or an int."""

_THREADS = 128  # that take part in an exchange: a warpgroup
MOST_BLOCKS = 128  # fewer than there are multiprocessors, so that all run at once
MOST_LINES = 10  # of a block, which holds them and all that arrives in registers
MOST_PACKET_LINES = 5  # of them sent as packets


@dataclasses.dataclass(frozen=True)
class PeerBuffer:
    """The layout of a peer buffer, as offsets in bytes.

    It begins with a count of exchanges for each block of threads, and for each partner a flag; then
    come the time of the last wait that gave up, and packets and lines, in two halves for odd and
    even exchanges.

    Attributes:
        num_devices: N.
        num_blocks: blocks of threads that may use it.
        num_lines: most lines that a block sends.
        num_packet_lines: most lines that a block sends as packets.
        line_bytes: of a line: 16 for each thread of a block.
    """

    num_devices: int
    num_blocks: int
    num_lines: int
    num_packet_lines: int
    line_bytes: int

    @property
    def num_bytes(self) -> int:
        """The size of a peer buffer in bytes."""
        return self._lines + self._places * self.num_lines * self.line_bytes

    @property
    def given_up(self) -> int:
        """Offset of the time at which a wait of this GPU last gave up: nanoseconds, 64 bits."""
        return 4 * self.num_devices * self.num_blocks

    @property
    def _packets(self) -> int:
        return self.given_up + 16

    @property
    def _lines(self) -> int:
        return self._packets + self._places * self.num_packet_lines * 2 * self.line_bytes

    @property
    def _places(self) -> int:
        return 2 * (self.num_devices - 1) * self.num_blocks

    def count(self, block: Offset) -> Offset:
        """Offset of the number of exchanges that the block has made."""
        return block * 4

    def flag(self, distance: int, block: Offset) -> Offset:
        """Offset of the flag that the partner at that distance raises."""
        return (block + distance * self.num_blocks) * 4

    def packet(self, distance: int, half: Offset, block: Offset, line: int) -> Offset:
        """Offset of a line from the partner at that distance, as packets."""
        place = self._place(distance, half, block) * (self.num_packet_lines * 2 * self.line_bytes)
        return place + (self._packets + line * 2 * self.line_bytes)

    def line(self, distance: int, half: Offset, block: Offset, line: int) -> Offset:
        """Offset of a line from the partner at that distance, as plain data."""
        place = self._place(distance, half, block) * (self.num_lines * self.line_bytes)
        return place + (self._lines + line * self.line_bytes)

    def _place(self, distance: int, half: Offset, block: Offset) -> Offset:
        return (half + 2 * (distance - 1)) * self.num_blocks + block


def shared_peer_buffer(num_devices: int) -> PeerBuffer:
    """The peer buffer that all kernels of a given number of GPUs share."""
    return PeerBuffer(num_devices, MOST_BLOCKS, MOST_LINES, MOST_PACKET_LINES, 16 * _THREADS)


class Opened(NamedTuple):
    """The state of an exchange that a block has opened, before it sends; int32 scalars.

    Attributes:
        block: this block's number.
        number: this exchange's.
        bases: addresses of the peer buffers, its own first: the low and the high half of each.
    """

    block: Scalar
    number: Scalar
    bases: tuple[tuple[Scalar, Scalar], ...]


def open_exchange(peer_buffer: PeerBuffer, block: Scalar, peers: Ref) -> Opened:
    """Begin an exchange; called early, its memory reads overlap other work.

    Args:
        peers: addresses of the peer buffers, int32 ``[N, 2]`` in device memory; its own first.
    """
    scalar = plgpu.ShapeDtypeStruct((), jnp.dtype(jnp.int32), layout=plgpu.Layout.WG_SPLAT)
    rows = range(peer_buffer.num_devices)

    @plgpu.inline_mgpu(
        arg_types=(plgpu.Layout.WG_SPLAT, plgpu.RefType()),
        return_type=(scalar, tuple((scalar, scalar) for _ in rows)),
    )
    def load(context: Any, block: Any, peers: Any) -> Any:
        del context
        halves = tuple(tuple(ptx.load_element(peers, row, i) for i in (0, 1)) for row in rows)
        count = ptx.address(*halves[0]) + peer_buffer.count(ptx.widened(ptx.word_of(block)))
        (number,) = ptx.asm(instructions.COUNT, "=r,l", [count], 1)
        return [ptx.scalar(word) for word in (number, *itertools.chain(*halves))]

    number, bases = load(block, peers)  # pyright: ignore[reportCallIssue]
    return Opened(block, number, bases)


def trade(
    peer_buffer: PeerBuffer,
    values: jax.Array,
    opened: Opened,
    layout: RegisterLayout,
    *,
    as_packets: bool,
    num_threads: int = _THREADS,
) -> list[jax.Array]:
    """Give each partner this block's values and take theirs; called by one warpgroup, the first.

    Args:
        values: 16-bit ``[rows, elements]`` in registers of `layout`, 16 bytes a thread and line.
        as_packets: send them as packets, not as lines and a flag.
        num_threads: the number of leading threads that exchange packets; the other threads' results
            are meaningless.

    Returns:
        The values of the partners at distance 1, 2, ...; NaN from one that did not come.
    """
    received = plgpu.ShapeDtypeStruct(values.shape, values.dtype, layout=layout)
    distances = range(1, peer_buffer.num_devices)

    @plgpu.inline_mgpu(
        arg_types=(layout, jax.tree.map(lambda _: plgpu.Layout.WG_SPLAT, opened)),
        return_type=(received,) * len(distances),
    )
    def exchange(context: Any, values: Any, opened: Opened) -> tuple[Any, ...]:
        del context
        sent = [ptx.words_of(register) for register in values.registers.flat]
        kind = values.registers.flat[0].type
        send = functools.partial(_packets, num_threads) if as_packets else _lines
        parts = []
        for lines in send(_Post(peer_buffer, opened), sent):
            taken = values.registers.copy()
            taken.flat = [ptx.vector_of(words, kind) for words in lines]
            part = type(values)(_registers=taken, _layout=values.layout, _is_signed=None)
            parts.append(part)
        return tuple(parts)

    return list(exchange(values, opened))  # pyright: ignore[reportCallIssue]


class _Post:
    """One thread's state of an exchange."""

    def __init__(self, peer_buffer: PeerBuffer, opened: Opened) -> None:
        self.peer_buffer, self.block = peer_buffer, ptx.widened(ptx.word_of(opened.block))
        self.number = ptx.word_of(opened.number)
        self.bases = [ptx.address(*map(ptx.word_of, base)) for base in opened.bases]
        self.thread = ptx.thread()
        self.half = ptx.widened(arith.andi(self.number, ptx.constant(1, 32)))

    @property
    def distances(self) -> range:
        """Distances of the partners."""
        return range(1, self.peer_buffer.num_devices)

    @property
    def given_up(self) -> Word:
        """Address of the time at which a wait of this GPU last gave up."""
        return self.bases[0] + self.peer_buffer.given_up

    @property
    def _own_count(self) -> Word:
        return self.bases[0] + self.peer_buffer.count(self.block)

    def keep_number(self) -> None:
        """Count this exchange; all threads of the block have read the count."""
        ptx.asm(instructions.KEEP, "l,r,r", [self._own_count, self.number, self.thread])

    def flag(self, base: Word, distance: int) -> Word:
        """Address of a flag in the peer buffer at `base`."""
        return base + self.peer_buffer.flag(distance, self.block)

    def packet(self, base: Word, distance: int, line: int) -> Word:
        """Address of this thread's packets in the peer buffer at `base`."""
        place = self.peer_buffer.packet(distance, self.half, self.block, line)
        return base + place + ptx.widened(self.thread) * 32

    def line(self, base: Word, distance: int, line: int) -> Word:
        """Address of this thread's part of a line in the peer buffer at `base`."""
        place = self.peer_buffer.line(distance, self.half, self.block, line)
        return base + place + ptx.widened(self.thread) * 16


def _packets(num_threads: int, post: _Post, sent: list[list[Any]]) -> list[list[list[Any]]]:
    """Exchange words by packets: of each partner its lines."""
    who = [post.thread, ptx.constant(num_threads, 32)]
    for distance in post.distances:
        for i, words in enumerate(sent):
            place = post.packet(post.bases[distance], distance, i)
            for part in (0, 1):
                pair = words[2 * part : 2 * part + 2]
                packets = [place + 16 * part, *pair, post.number, *who]
                ptx.asm(instructions.POST, "l,r,r,r,r,r", packets)
    ptx.warpgroup_barrier()
    post.keep_number()
    awaited = [post.number, *who, post.given_up]
    received = []
    for distance in post.distances:
        lines = []
        for i in range(len(sent)):
            place = post.packet(post.bases[0], distance, i)
            pairs = [
                ptx.asm(instructions.RECEIVE, "=&r,=&r,l,r,r,r,l", [place + 16 * part, *awaited], 2)
                for part in (0, 1)
            ]
            lines.append(pairs[0] + pairs[1])
        received.append(lines)
    return received


def _lines(post: _Post, sent: list[list[Any]]) -> list[list[list[Any]]]:
    """Exchange words by lines and flags: of each partner its lines."""
    for distance in post.distances:
        for i, words in enumerate(sent):
            place = post.line(post.bases[distance], distance, i)
            ptx.asm(instructions.STORE, "l,r,r,r,r", [place, *words])
    ptx.warpgroup_barrier()
    post.keep_number()
    for distance in post.distances:
        flag = post.flag(post.bases[distance], distance)
        ptx.asm(instructions.RAISE, "l,r,r", [flag, post.number, post.thread])
    received = []
    for distance in post.distances:
        awaited = [post.flag(post.bases[0], distance), post.number, post.given_up]
        # All ones of a NaN where the partner did not come, else zeros.
        (nan,) = ptx.asm(instructions.AWAIT, "=&r,l,r,l", awaited, 1)
        places = [post.line(post.bases[0], distance, i) for i in range(len(sent))]
        loaded = [ptx.asm(instructions.LOAD, "=r,=r,=r,=r,l", [place], 4) for place in places]
        received.append([[arith.ori(word, nan) for word in words] for words in loaded])
    return received
