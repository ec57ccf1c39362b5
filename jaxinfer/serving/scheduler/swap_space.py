"""Blocks in host memory for preempted requests, and the copies still to be scheduled."""

from jaxinfer.serving.requests.request import Request


class SwapSpace:
    """Hands out host blocks, all that a request needs or none; without any, swapping is off.

    Args:
        num_blocks: a multiple of `array_size`.
        array_size: blocks that are taken and given back together, as rows of one array; a request
            has the first rows of each of its arrays.

    Raises:
        ValueError: if `num_blocks` is negative.
    """

    def __init__(self, num_blocks: int, array_size: int = 1) -> None:
        if num_blocks < 0:
            raise ValueError(f"num_host_blocks must not be negative: {num_blocks}")
        self.num_blocks = num_blocks
        self._size = array_size
        self._free = list(range(num_blocks // array_size - 1, -1, -1))
        self.copies_out: list[tuple[int, int]] = []
        """(device block, host block) copies for the next schedule."""

    @property
    def num_free_blocks(self) -> int:
        """Host blocks that are free."""
        return len(self._free) * self._size

    def take(self, request: Request, num_blocks: int) -> bool:
        """Give the request's leading blocks a place in host memory and note the copies.

        The request's `blocks.host` is filled; its device blocks may be freed at once, because
        the copies run before anything that is scheduled later.

        Returns:
            False, with nothing changed, if there is not room for all `num_blocks`.
        """
        num_arrays = -(-num_blocks // self._size)
        if num_arrays > len(self._free):
            return False
        arrays = [self._free.pop() for _ in range(num_arrays)]
        rows = [array * self._size + row for array in arrays for row in range(self._size)]
        request.blocks.host = rows[:num_blocks]
        self.copies_out += zip(request.blocks.table, request.blocks.host, strict=False)
        return True

    def release(self, request: Request) -> None:
        """Give the request's host blocks back, because their content is about to be copied in."""
        self._free += self._arrays(request.blocks.host)
        request.blocks.host = []

    def discard(self, request: Request) -> None:
        """Give the request's host blocks back and call off copies into them not yet scheduled."""
        called_off = set(request.blocks.host)
        self.copies_out = [pair for pair in self.copies_out if pair[1] not in called_off]
        self.release(request)

    def pop_copies_out(self) -> list[tuple[int, int]]:
        """The (device block, host block) copies since the last call, for the next schedule."""
        copies, self.copies_out = self.copies_out, []
        return copies

    def check_invariants(self, holders: list[list[int]]) -> None:
        """Raise RuntimeError unless every array is free or held exactly once."""
        held = [array for blocks in holders for array in self._arrays(blocks)]
        if sorted(self._free + held) != list(range(self.num_blocks // self._size)):
            raise RuntimeError("swap space: free + held arrays differ from the total")

    def _arrays(self, blocks: list[int]) -> list[int]:
        """The arrays that a request's host blocks are rows of."""
        return [block // self._size for block in blocks[:: self._size]]
