"""Shares as percentages that claim no more than is so: 99.5% is not all, and 0.4% is not none."""


def share_text(share: float, digits: int = 0) -> str:
    """A share as a percentage, such as "50%"; ">99%" and "<1%" where rounding would say 100% or 0%.

    Args:
        share: 1 is all; it may be more.
        digits: after the point.
    """
    text, step = f"{share:.{digits}%}", 10**-digits
    if share < 1 and text == f"{1:.{digits}%}":
        return f">{100 - step:.{digits}f}%"
    if share > 0 and text == f"{0:.{digits}%}":
        return f"<{step:.{digits}f}%"
    return text
