"""Arithmetic of KV blocks: from a device's memory to blocks, tokens and sequences."""

from jaxinfer.errors import CapacityError

COMMANDS_ALLOCATOR_SHARE = 0.92
"""Share of a GPU's memory that commands give XLA's allocator; the rest is for CUDA graphs and for
buffers that XLA and NCCL exchange between devices. JAX itself would give it 75%."""

_LEAST_STAGED_BLOCKS = 64
# Programs beside the engine's steps, its own or the caller's, need a little of it.
_LARGEST_SHARE_OF_ALLOCATOR = 0.95


def engine_bytes(
    device_bytes: float, *, utilization: float, allocator_share: float = COMMANDS_ALLOCATOR_SHARE
) -> int:
    """Bytes of a device that an engine may take in all, weights included.

    Args:
        device_bytes: the device's memory.
        utilization: share of it that the engine may use.
        allocator_share: share of it that XLA's allocator may take; 5% of that stay free.
    """
    limit = device_bytes * allocator_share
    return int(min(utilization * device_bytes, _LARGEST_SHARE_OF_ALLOCATOR * limit))


def usable_tokens(num_blocks: int, block_size: int) -> int:
    """Tokens that the cache holds; block 0 is reserved for padding."""
    return (num_blocks - 1) * block_size


def sequences_that_fit(num_blocks: int, block_size: int, length: int) -> int:
    """Sequences of `length` tokens that the cache holds at once, each in blocks of its own."""
    return (num_blocks - 1) // -(-length // block_size)


def longest_that_fits(num_blocks: int, block_size: int, num_seqs: int) -> int:
    """Tokens that each of `num_seqs` sequences may have at once, in whole blocks."""
    return (num_blocks - 1) // num_seqs * block_size


def blocks_on_devices(
    free_bytes: int, *, block_bytes: int, step_bytes: int, utilization: float
) -> int:
    """Blocks for accelerators: the free memory, less the needs of the largest step.

    The result is rounded down to a multiple of about a hundredth of itself, so that small
    differences in memory use do not change the shapes of every program and miss the compilation
    cache.

    Args:
        free_bytes: from `free_bytes`.
        block_bytes: size of a block on one device, over all layers.
        step_bytes: temporaries and results of the largest step on one device.
        utilization: for the error message.

    Raises:
        CapacityError: nothing is left.
    """
    room = free_bytes - step_bytes
    blocks = room // block_bytes
    if blocks < 2:
        raise CapacityError(
            f"no room for a KV cache: gpu_memory_utilization={utilization:g} leaves "
            f"{room / 2**30:.2f} GiB after weights and {step_bytes / 2**30:.2f} GiB for the "
            "largest step; raise gpu_memory_utilization, lower max_num_batched_tokens, or use a "
            "larger tensor_parallel_size"
        )
    grain = 1 << max(blocks.bit_length() - 8, 0)
    return blocks // grain * grain


_STAGED = 3  # times `staged_blocks`: evicted by two steps, and on their way back
PADDING = 64
"""Blocks of padding that a launch of copies may make: half of its arrays."""


def staged_blocks(token_budget: int, block_size: int) -> int:
    """Blocks that come back from host memory at once, at most.

    A step evicts about as many as it fills.

    Args:
        token_budget: tokens of a step at most.
        block_size: tokens of a block.
    """
    return max(-(-token_budget // block_size), _LEAST_STAGED_BLOCKS)


def blocks_beside_pages(token_budget: int, block_size: int) -> int:
    """Blocks that lie beside the pages at most, on their way to host memory and back.

    Args:
        token_budget: tokens of a step at most.
        block_size: tokens of a block.
    """
    return _STAGED * staged_blocks(token_budget, block_size) + PADDING


def check_capacity(
    *, num_blocks: int, block_size: int, max_model_len: int, remedy: str = "raise num_kv_blocks"
) -> None:
    """Refuse a cache that can't hold one full-length request.

    Args:
        num_blocks: blocks of the cache, block 0 included.
        block_size: tokens of a block.
        max_model_len: tokens of such a request.
        remedy: another remedy, beside a lower `max_model_len`.

    Raises:
        CapacityError: names the max_model_len that would fit.
    """
    usable = (num_blocks - 1) * block_size
    if usable < max_model_len:
        raise CapacityError(
            f"max_model_len={max_model_len} does not fit the KV cache: {num_blocks} blocks of "
            f"{block_size} hold {usable} tokens (block 0 is reserved); set max_model_len to at "
            f"most {usable}, or {remedy}"
        )
