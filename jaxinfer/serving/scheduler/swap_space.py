"""Blocks in host memory for preempted requests, and the copies still to be scheduled."""

from jaxinfer.serving.requests.request import Request


class SwapSpace:
    """Hands out host blocks, all that a request needs or none; without any, swapping is off.

    Raises:
        ValueError: if `num_blocks` is negative.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 0:
            raise ValueError(f"num_host_blocks must not be negative: {num_blocks}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self.copies_out: list[tuple[int, int]] = []
        """(device block, host block) copies for the next schedule."""

    @property
    def num_free_blocks(self) -> int:
        """Host blocks that are free."""
        return len(self._free)

    def take(self, request: Request, num_blocks: int) -> bool:
        """Give the request's leading blocks a place in host memory and note the copies.

        The request's `blocks.host` is filled; its device blocks may be freed at once, because
        the copies run before anything that is scheduled later.

        Returns:
            False, with nothing changed, if there is not room for all `num_blocks`.
        """
        if num_blocks > len(self._free):
            return False
        request.blocks.host = [self._free.pop() for _ in range(num_blocks)]
        self.copies_out += zip(request.blocks.table, request.blocks.host, strict=False)
        return True

    def release(self, request: Request) -> None:
        """Give the request's host blocks back, because their content is about to be copied in."""
        self._free += request.blocks.host
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
        """Raise RuntimeError unless every host block is free or held exactly once."""
        held = [block for blocks in holders for block in blocks]
        if sorted(self._free + held) != list(range(self.num_blocks)):
            raise RuntimeError("swap space: free + held blocks differ from the total")
