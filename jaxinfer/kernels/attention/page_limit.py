"""The largest number of pages in a pool, so that all indices into it fit 32 bits."""

_ADDRESSES = 2**31


def most_pages(page_size: int, kv_heads: int) -> int:
    """The most pages of a pool ``[P, S, K, D]`` on one device.

    Slots (``page * S + offset``) are int32. Hopper's copy engine may take a pool's pages, tokens
    and heads as one dimension, of up to ``P * S * K`` rows, which it too indexes with int32; a
    longer one aborts the process at launch. With 16 bits an element and 64 a row, that many rows
    take 256 GiB.

    Args:
        page_size: S, tokens in a page.
        kv_heads: K, of one device.
    """
    return (_ADDRESSES - 1) // (page_size * kv_heads)
