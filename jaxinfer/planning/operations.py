"""A model's parameters, operations and bytes by part, each with the formula and its numbers."""

import dataclasses

from jaxinfer.config import KVCacheDType
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, MLP_PROJECTIONS
from jaxinfer.model.projections import HEAD
from jaxinfer.planning.shapes import ATTENTION, BYTES_OF, MLP, ModelShape

# Square, sum, scale and weight of each value; rotation of a pair takes 4 products and 2 additions.
_NORM_FLOPS = 4
_ROPE_FLOPS = 3


@dataclasses.dataclass(frozen=True)
class Operation:
    """One part of the forward pass, over all layers.

    Attributes:
        name: the part's name.
        parameters: number of its parameters.
        flops_per_token: operations per token (for attention, at `context` cached tokens).
        bytes_per_token: bytes read for a token that is decoded alone; a batch shares all but those
            of attention and of embedding rows. Only the experts that the token is routed to count.
        formula: of the parameters (of the operations, where there are none), numbers filled in.
    """

    name: str
    parameters: int
    flops_per_token: int
    bytes_per_token: int
    formula: str


def operations(
    shape: ModelShape,
    dtype: str,
    context: int,
    kv_cache_dtype: KVCacheDType = "auto",
    *,
    pools: bool = False,
) -> tuple[Operation, ...]:
    """Every part of the forward pass.

    Args:
        shape: the model.
        dtype: of activations, and of weights that are not quantized.
        context: tokens that attention reads.
        kv_cache_dtype: dtype of keys and values in the cache.
        pools: prompts are read alone, and no token goes through the head.
    """
    size = BYTES_OF[dtype]
    parts = [_embedding(shape, size), _norms(shape, size), _projections(shape, size)]
    kv_bytes = shape.kv_bytes_per_token(size, kv_cache_dtype=kv_cache_dtype)
    parts += [_rope(shape, kv_bytes), _attention(shape, kv_bytes, context)]
    parts += [_mlp(shape, size)] if shape.num_dense_layers else []
    parts += [_router(shape, size), _experts(shape, size)] if shape.num_expert_layers else []
    head = _classifier(shape) if shape.num_classes else _head(shape, size)
    if pools and not shape.num_classes:
        where = "the embedding" if shape.tie_word_embeddings else head.formula
        formula = f"{where}; no token goes through it"
        head = dataclasses.replace(head, flops_per_token=0, bytes_per_token=0, formula=formula)
    return (*parts, head)


def count_parameters(shape: ModelShape) -> int:
    """All parameters, each once: a tied head is the embedding."""
    return sum(part.parameters for part in operations(shape, shape.dtype, 0))


def active_parameters(shape: ModelShape) -> int:
    """Parameters that one token uses; only the experts that it is routed to count."""
    idle = shape.num_experts - shape.experts_per_token
    return count_parameters(shape) - shape.num_expert_layers * idle * shape.expert_weights


def weight_bytes_per_device(
    shape: ModelShape, dtype: str, num_devices: int, num_redundant: int = 0
) -> int:
    """Bytes of the parameters on each device, as the engine shards them.

    Norms, unless they span all heads, and biases of what is summed are whole on every device; so
    are the projections to keys and values where there are fewer heads than devices. Of experts each
    has as much whether they are split whole or by their width, and of `num_redundant` in each layer
    as much as of others.
    """
    E, L, N = shape.hidden_size, shape.num_hidden_layers, num_devices
    wide = shape.layer_kind.wide_norms
    whole = _norms(shape, 1).parameters + L * shape.bias_size("o_proj", "down_proj")
    whole -= L * shape.qk_norm_size if wide else 0
    split = _embedding(shape, 1).parameters
    split += 0 if shape.num_classes else _head(shape, 1).parameters
    split += L * 2 * E * shape.q_size + shape.num_dense_layers * shape.mlp_weights
    whole += shape.num_expert_layers * E * shape.num_experts
    keys_and_values = 2 * L * E * shape.kv_size
    split += L * (shape.bias_size("q_proj", "gate_proj", "up_proj") + wide * shape.q_size)
    keys_and_values += L * (shape.bias_size("k_proj", "v_proj") + wide * shape.kv_size)
    kv_split = N if shape.num_key_value_heads % N == 0 else 1
    size, num_experts = BYTES_OF[dtype], shape.num_experts + num_redundant
    plain = (whole + split // N + keys_and_values // kv_split) * size
    experts = num_experts * shape.expert_bytes(size) // N
    return plain - shape.bytes_saved(size, N) + experts


def _weights(name: str, parameters: int, size: int, formula: str, saved: int = 0) -> Operation:
    return Operation(name, parameters, 2 * parameters, parameters * size - saved, formula)


def _embedding(shape: ModelShape, size: int) -> Operation:
    V, E = shape.vocab_size, shape.hidden_size
    return Operation("embedding", V * E, 0, E * size, f"V·E = {V}·{E}")


def head_norms(shape: ModelShape, size: int) -> Operation:
    """The part of the norms that belongs to queries and keys; nothing where they have none."""
    L, size_of_one = shape.num_hidden_layers, shape.qk_norm_size
    values = L * (shape.q_size + shape.kv_size) if size_of_one else 0
    parameters = L * size_of_one
    return Operation("head norms", parameters, _NORM_FLOPS * values, parameters * size, "2·L·D")


def _norms(shape: ModelShape, size: int) -> Operation:
    E, L, D = shape.hidden_size, shape.num_hidden_layers, shape.head_dim
    of_heads = head_norms(shape, size)
    values = (2 * L + 1) * E
    parameters = values + of_heads.parameters
    flops = _NORM_FLOPS * values + of_heads.flops_per_token
    formula = f"(2L+1)·E = (2·{L}+1)·{E}"
    if shape.layer_kind.wide_norms:
        formula = f"(2L+1)·E+L·(H+K)·D = (2·{L}+1)·{E}+{L}·{shape.qk_norm_size}"
    elif shape.layer_kind.head_norms:
        formula = f"(2L+1)·E+2·L·D = (2·{L}+1)·{E}+2·{L}·{D}"
    return Operation("norms", parameters, flops, parameters * size, formula)


def _projections(shape: ModelShape, size: int) -> Operation:
    E, L, D = shape.hidden_size, shape.num_hidden_layers, shape.head_dim
    H, K = shape.num_attention_heads, shape.num_key_value_heads
    parameters = L * 2 * E * (shape.q_size + shape.kv_size)
    formula = f"L·2·E·(H+K)·D = {L}·2·{E}·({H}+{K})·{D}"
    biases = shape.bias_size(*ATTENTION_PROJECTIONS)
    if biases:
        parameters += L * biases
        formula += f" + biases {L}·{biases}"
    saved = shape.bytes_saved(size, parts=ATTENTION)
    return _weights("qkv and output", parameters, size, formula, saved)


def _rope(shape: ModelShape, kv_bytes: int) -> Operation:
    L, D = shape.num_hidden_layers, shape.head_dim
    H, K = shape.num_attention_heads, shape.num_key_value_heads
    flops = _ROPE_FLOPS * L * (H + K) * D
    formula = f"operations {_ROPE_FLOPS}·L·(H+K)·D = {_ROPE_FLOPS}·{L}·({H}+{K})·{D}"
    return Operation("rope, KV write", 0, flops, kv_bytes, formula)


def _attention(shape: ModelShape, kv_bytes: int, context: int) -> Operation:
    L, H, D = shape.num_hidden_layers, shape.num_attention_heads, shape.head_dim
    return Operation(
        "attention",
        0,
        4 * L * H * D * context,
        kv_bytes * context,
        f"operations 4·L·H·D·context = 4·{L}·{H}·{D}·{context}",
    )


def _mlp(shape: ModelShape, size: int) -> Operation:
    E, F, L = shape.hidden_size, shape.intermediate_size, shape.num_dense_layers
    formula = f"L·3·E·F = {L}·3·{E}·{F}"
    saved, biases = shape.bytes_saved(size, parts=MLP), shape.bias_size(*MLP_PROJECTIONS)
    if biases:
        formula += f" + biases {L}·{biases}"
    return _weights("mlp", L * (shape.mlp_weights + biases), size, formula, saved)


def _router(shape: ModelShape, size: int) -> Operation:
    E, L, X = shape.hidden_size, shape.num_expert_layers, shape.num_experts
    return _weights("router", L * E * X, size, f"L·E·X = {L}·{E}·{X}")


def _experts(shape: ModelShape, size: int) -> Operation:
    L, X, chosen = shape.num_expert_layers, shape.num_experts, shape.experts_per_token
    E, weights = shape.hidden_size, shape.expert_weights
    F, active = weights // (3 * E), L * chosen * weights
    formula = f"L·X·3·E·F = {L}·{X}·3·{E}·{F}, {chosen} of {X} a token"
    read = chosen * shape.expert_bytes(size)
    return Operation("experts", L * X * weights, 2 * active, read, formula)


def _classifier(shape: ModelShape) -> Operation:
    """The head of a classifier: the host's, so that a device reads nothing of it."""
    C, E = shape.num_classes, shape.hidden_size
    return Operation("classifier", C * E, 0, 0, f"C·E = {C}·{E}, on the host")


def _head(shape: ModelShape, size: int) -> Operation:
    V, E = shape.vocab_size, shape.hidden_size
    if shape.tie_word_embeddings:
        return Operation("head", 0, 2 * V * E, V * E * size, f"the embedding; operations 2·{V}·{E}")
    saved = shape.bytes_saved(size, parts=(HEAD,))
    return _weights("head", V * E, size, f"V·E = {V}·{E}", saved)
