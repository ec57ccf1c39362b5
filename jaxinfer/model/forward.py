"""The forward pass over whole sequences, of any family: for training, scoring and comparison."""

import functools
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.matmul.xla import precision
from jaxinfer.model.architecture import activation_dtype, architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import Heads, LayerContext, LayerStep, Params, Parts, Rotation
from jaxinfer.model.layers.decoder import run_layers
from jaxinfer.model.layers.watching import watching


@jax.numpy_rank_promotion("allow")  # whatever a trainer has set for its own code
def forward(
    params: Params,
    config: ModelConfig,
    token_ids: Int[Array, "*batch T"],
    *,
    positions: Int[Array, "*batch T"] | None = None,
    attention_mask: jax.Array | None = None,
    remat: bool = False,
) -> Float[Array, "*batch T V"]:
    """Logits of whole sequences, with dense causal attention, by the family that `config` names.

    Pure: works under ``jit`` (``config`` and ``remat`` static), ``vmap``, ``grad``, and on a mesh,
    where the shardings of ``params`` and ``token_ids`` decide how the work is split.

    Args:
        params: tree as of ``abstract_params``; the dtype of its norms is the dtype computed in.
        config: the model's shape.
        token_ids: ids in [0, V), any leading dimensions; others are clamped silently.
        positions: absolute positions; 0, 1, 2, ... by default. Causality goes by index.
        attention_mask: nonzero where a key may be read: ``[..., T]`` for padding, as Hugging Face,
            or ``[..., T, T]`` (query, key) for packed sequences. It is combined with the causal
            mask; rows that see nothing give finite logits without meaning.
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
        float32 logits.

    Raises:
        ValueError: ``attention_mask`` has another shape, there is no token, or no family has the
            config's name.
    """
    x, _ = residual_stream(
        params, config, token_ids, positions=positions, attention_mask=attention_mask, remat=remat
    )
    model = architecture_of(config)
    return model.lm_head(params, model.final_hidden(params, x, config))


def residual_stream(
    params: Params,
    config: ModelConfig,
    token_ids: Int[Array, "*batch T"],
    *,
    positions: Int[Array, "*batch T"] | None = None,
    attention_mask: jax.Array | None = None,
    remat: bool = False,
    watched: Collection[int] = (),
    change: Callable[[LayerContext], LayerContext] = lambda context: context,
) -> tuple[Float[Array, "*batch T E"], dict[int, jax.Array]]:
    """The residual stream behind the last layer, and as it enters some of the layers.

    Args and errors as of `forward`, but for:
        watched: indices of layers.
        change: gives each layer another context, such as one with a tap.

    Returns:
        The stream, and for each of these layers the one that it reads.
    """
    if token_ids.size == 0:
        raise ValueError(f"token_ids has shape {token_ids.shape}; forward needs at least one token")
    length = token_ids.shape[-1]
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(length), token_ids.shape)
    mask = _dense_mask(token_ids.shape, attention_mask)
    model = architecture_of(config)
    x = model.embed(params, token_ids).astype(activation_dtype(params))
    rotations = model.rotations(positions, config, x.dtype)

    def step_of(index: int, kind: LayerKind) -> LayerStep:
        context = change(dense_context(config, kind, rotations[kind.rotation], mask, index))
        layer_step = functools.partial(model.decoder_layer, context=context)
        layer_step = jax.checkpoint(layer_step) if remat else layer_step
        return lambda layer, _, residuals, *rest: (None, [layer_step(layer, residuals[0])])

    layers, kinds = params["model"]["layers"], model.layer_kinds(config)
    parts = Parts([begin(x)], [rotations], [None])
    seen: dict[int, jax.Array] = {}
    _, x = run_layers(layers, kinds, [None] * len(kinds), parts, watching(step_of, watched, seen))
    return x, seen


def dense_context(
    config: ModelConfig,
    kind: LayerKind,
    rotation: Rotation,
    mask: Bool[Array, "*masked T T"],
    index: int | None = None,
) -> LayerContext:
    """What a layer is given where whole sequences pass it; `mask` is of queries and keys."""
    rotate_heads = architecture_of(config).rotate_heads

    def attend(attention: Params, heads: Heads) -> jax.Array:
        q, k, v = heads
        q, k = rotate_heads(attention, q, k, rotation, config.rms_norm_eps)
        return dense_attention(q, k, v, mask)

    return LayerContext(config, kind, attend, index=index)


@jax.named_scope("attention")
def dense_attention(
    q: Float[Array, "*batch T H D"],
    k: Float[Array, "*batch S K D"],
    v: Float[Array, "*batch S K D"],
    mask: Bool[Array, "*masked T S"],
) -> Float[Array, "*batch T H D"]:
    """Softmax attention over whole sequences; query head h reads key/value head ``h // (H/K)``.

    Scores and softmax are float32; probabilities are rounded to ``q.dtype`` before they weigh v.
    """
    *leading, heads, head_dim = q.shape
    grouped = q.reshape(*leading, k.shape[-2], -1, head_dim)
    product = functools.partial(jnp.einsum, precision=precision(q.dtype))
    scores = product("...tkgd,...skd->...kgts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(
        mask[..., None, None, :, :], scores * head_dim**-0.5, jnp.finfo(jnp.float32).min
    )
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    mixed = product("...kgts,...skd->...tkgd", weights, v, preferred_element_type=q.dtype)
    return mixed.reshape(*leading, heads, head_dim)


def _dense_mask(shape: tuple[int, ...], attention_mask: jax.Array | None) -> jax.Array:
    """Which keys each query may read: ``[T, T]``, or with leading dimensions if a mask is given."""
    length = shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    if attention_mask is None:
        return causal
    if attention_mask.shape == shape:
        return causal & attention_mask.astype(bool)[..., None, :]
    if attention_mask.shape == (*shape, length):
        return causal & attention_mask.astype(bool)
    raise ValueError(
        f"attention_mask must have shape {shape} or {(*shape, length)}, got {attention_mask.shape}"
    )
