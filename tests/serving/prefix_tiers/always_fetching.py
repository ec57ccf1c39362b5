"""Whether engines of the tests fetch blocks from tiers: always, on machines that may be busy."""

from jaxinfer.serving.prefix_tiers.fetch_policy import LEAST_BLOCKS, FetchPolicy


def always_worth(policy: FetchPolicy, *, num_blocks: int, **_: int) -> bool:
    """Whether to fetch, whatever was measured."""
    return num_blocks >= LEAST_BLOCKS
