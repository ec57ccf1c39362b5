"""The named parts of a step, and the mapping of operations' names to them."""

PARTS = (
    "embed",
    "norm",
    "qkv",
    "rope_and_write",
    "attention",
    "o",
    "mlp",
    "head",
    "sample",
)
"""Names of `jax.named_scope` in the model and its steps, in the order in which a step runs them.

A norm inside another part is "norm", unless one kernel computes both: then it is that part's.
"""
OTHER = "other"
"""Work outside all named parts: a step's inputs, and copies that XLA adds."""
HOST_SPANS = ("schedule", "pack", "launch", "fetch", "detokenize")
"""The host's work in a step, in this order; recorded as `jaxinfer.NAME`."""
SPAN_PREFIX = "jaxinfer."


def part_of(op_name: str) -> str | None:
    """The innermost part in an operation's name as HLO has it, or None.

    >>> part_of("jit(decode_step)/jit(layer_step)/qkv/norm/mul")
    'norm'
    """
    return next((word for word in reversed(op_name.split("/")) if word in PARTS), None)
