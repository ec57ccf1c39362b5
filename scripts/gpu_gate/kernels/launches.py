"""Launches of each GPU kernel by itself, at shapes that an engine meets, beside what XLA computes.

Rows end inside pages, so that copies are left out; blocks have more rounds than stages and fewer;
products are cut and whole.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes, rows_in_item
from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.op import Columns, Logits, Routed, mix
from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantize_groups
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.model.quantized.params import quantize_weight
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.serving.programs import peer_buffers
from jaxinfer.serving.programs.shared_prefixes import find_groups, most_items, write_items
from scripts.gpu_gate.kernels.trial import TriedOp

_H, _K, _D, _S, _PAGES = 16, 8, 128, 16, 1024
_E, _F, _EPS = 1024, 3072, 1e-6


class Launch(NamedTuple):
    """One kernel, or a few that belong together, at one shape.

    Attributes:
        what: the shape, in words.
        run: of `arguments`, with the kernel.
        expected: the same with XLA.
        arguments: arrays.
        near: how far results may be from XLA's, as a part of the largest.
    """

    what: str
    run: Callable[..., Any]
    expected: Callable[..., Any]
    arguments: tuple[Any, ...]
    near: float = 0.03


def launches(op: TriedOp) -> Iterator[Launch]:
    """What one of Mosaic's kernels is tried with; nothing where this machine can't run it."""
    return _BY_OP[op]()


def _decode() -> Iterator[Launch]:
    for rows, longest in ((1, 9), (1, 1000), (1, 8005), (64, 900), (256, 400)):
        contexts = _ragged(rows, longest)
        yield _attention(f"{rows} x {longest} keys", contexts, [1] * rows)
    yield _shared_decode(64, 16, 20 * _S)


def _prefill() -> Iterator[Launch]:
    for name, contexts, queries in (
        ("4 tokens", [4], [4]),
        ("ragged", [1, 40, 300, 700], [1, 40, 300, 700]),
        ("after others", [900, 77], [130, 5]),
    ):
        yield _attention(name, contexts, queries)


def _ragged(rows: int, longest: int) -> list[int]:
    """Contexts that end anywhere in a page; the first is the longest."""
    return [max(1, longest - i * 53 % longest) for i in range(rows)]


def _attention(
    what: str,
    contexts: Sequence[int],
    queries: Sequence[int],
    shared: SharedPrefixes | None = None,
    tables: jax.Array | None = None,
) -> Launch:
    longest = 1 if max(queries) == 1 else None
    attend = functools.partial(attention.paged_attention, scale=_D**-0.5, max_query_len=longest)
    run = functools.partial(attend, shared=shared, kernels=Kernels("mosaic"))

    offsets = np.concatenate([[0], np.cumsum(queries)])
    arguments = (
        _draw(0, sum(queries), _H, _D),
        Pages(_draw(1, _PAGES, _S, _K, _D), _draw(2, _PAGES, _S, _K, _D)),
        jnp.asarray(offsets, jnp.int32),
        jnp.asarray(contexts, jnp.int32),
        _tables(contexts) if tables is None else tables,
    )
    return Launch(what, run, functools.partial(attend, kernels=XLA), arguments)


def _tables(contexts: Sequence[int]) -> jax.Array:
    width = -(-max(contexts) // _S)
    drawn = np.random.default_rng(0).integers(1, _PAGES, (len(contexts), width))
    return jnp.asarray(drawn, jnp.int32)


def _shared_decode(rows: int, group: int, keys: int) -> Launch:
    """Groups of rows that begin with the same pages."""
    contexts = [keys + 1 + i * 53 % 211 for i in range(rows)]
    tables = np.array(_tables(contexts))
    for row in range(rows):
        tables[row, : keys // _S] = tables[row - row % group, : keys // _S]
    shapes = (1, (most_items(rows), 4), (rows, 4))
    shared = SharedPrefixes(*(np.zeros(shape, np.int32) for shape in shapes))  # pyright: ignore[reportArgumentType]
    size = rows_in_item(_H // _K)
    lens = np.asarray(contexts, np.int32)
    groups = find_groups(tables, lens, block_size=_S, batch_rows=rows, rows_in_item=size)
    write_items(shared, groups)
    placed = jax.tree.map(jnp.asarray, shared)
    what = f"{rows} rows share {keys} keys"
    return _attention(what, contexts, [1] * rows, placed, jnp.asarray(tables))


def _norm_rope_write() -> Iterator[Launch]:
    for T in (2, 256):
        merged = _draw(0, T, _H + 2 * _K, _D)
        heads = tuple(jnp.split(merged, [_H, _H + _K], axis=1))
        slots = np.random.default_rng(0).permutation(_PAGES * _S)[:T]
        pages = Pages(_draw(3, _PAGES, _S, _K, _D), _draw(4, _PAGES, _S, _K, _D))
        arguments = (_draw(1, _D), _draw(2, _D), _draw(5, T, _D), _draw(6, T, _D), pages)
        arguments = (*arguments, jnp.asarray(slots, jnp.int32))
        for name, given in (("three arrays", heads), ("one array", (merged,))):
            write = functools.partial(attention.norm_rope_write, eps=_EPS)
            run, expected = (
                functools.partial(write, kernels=Kernels(b)) for b in ("mosaic", "xla")
            )
            yield Launch(f"{T} tokens in {name}", run, expected, (given, *arguments))


def _small() -> Iterator[Launch]:
    small = module_of("mosaic", "small")
    for B in (2, 16):
        x, wide, norm = _draw(0, B, _E), _draw(1, B, _F), _draw(2, _E)
        q, k, down = _draw(3, 2048, _E), _draw(4, 1024, _E), _draw(5, _E, _F)
        gate, up = _draw(6, _F, _E), _draw(7, _F, _E)
        residual = _draw(8, B, _E)
        yield Launch(
            f"norm and q, k, v of {B} rows",
            lambda x, norm, *w: small.norm_project(x, norm, w, eps=_EPS),
            lambda x, norm, *w: tuple(_product(rms_norm(x, norm, _EPS), each) for each in w),
            (x, norm, q, k, k),
        )
        yield Launch(
            f"norm, gate and up of {B} rows",
            lambda x, norm, gate, up: small.norm_gated(x, norm, gate, up, eps=_EPS),
            lambda x, norm, gate, up: _gated(rms_norm(x, norm, _EPS), gate, up),
            (x, norm, gate, up),
        )
        yield Launch(
            f"down of {B} rows, added",
            small.project_add,
            lambda x, w, residual: _product(x, w) + residual,
            (wide, down, residual),
        )
        yield Launch(f"down of {B} rows", small.project, _product, (wide, down))
    yield from _small_quantized()


def _small_quantized() -> Iterator[Launch]:
    """Each kind of codes; fp8 has blocks, and inputs that the kernel quantizes, too."""
    small = module_of("mosaic", "small")
    for scheme, B in (("fp8", 2), ("fp8", 16), ("int8", 2), ("W4A16_ASYM", 2), ("int4", 16)):
        gate, up = (_quantized(scheme, _draw(seed, _F, _E)) for seed in (6, 7))
        yield Launch(
            f"norm, gate and up of {B} rows, {scheme}",
            lambda x, norm, gate, up: small.norm_gated(x, norm, gate, up, eps=_EPS),
            lambda x, norm, gate, up: _gated(
                # Before anything rounds it to bfloat16, which moves inputs to neighbouring codes.
                gate.rounded_inputs(rms_norm(_float32(x), _float32(norm), _EPS)).astype(x.dtype),
                *(each.matrix(x.dtype) for each in (gate, up)),
            ),
            (_draw(0, B, _E), _draw(2, _E), gate, up),
        )
    down = _quantized("fp8", _draw(5, _E, _F))
    yield Launch(
        "down of 2 rows, added, fp8",
        small.project_add,
        lambda x, w, residual: _product(w.rounded_inputs(x), w.matrix(x.dtype)) + residual,
        (_draw(1, 2, _F), down, _draw(8, 2, _E)),
    )


def _quantized(scheme: str, weight: jax.Array) -> QuantizedLinear:
    form = Quantization.scheme(scheme)
    return QuantizedLinear(**quantize_weight(weight, form), inputs=form.inputs)


def _medium() -> Iterator[Launch]:
    medium = module_of("mosaic", "medium")
    for B in (32, 64, 256):
        x, q, k = _draw(0, B, _E), _draw(3, 2048, _E), _draw(4, 1024, _E)
        yield Launch(
            f"q, k, v of {B} rows",
            lambda x, *w: medium.project(x, w),
            lambda x, *w: tuple(_product(x, each) for each in w),
            (x, q, k, k),
        )
        gate, up = _draw(6, _F, _E), _draw(7, _F, _E)
        yield Launch(f"gate and up of {B} rows", medium.gated, _gated, (x, gate, up))
    yield from _low_rank()


def _low_rank() -> Iterator[Launch]:
    """Products that ranks of adapters are added to, of which a row keeps its own."""
    medium = module_of("mosaic", "medium")
    for B in (16, 256):
        slots = jnp.asarray(np.arange(B) % 5 - 1, jnp.int32)
        owners = jnp.tile(jnp.repeat(jnp.arange(4, dtype=jnp.int32), 16), 2)
        x, q, k, a = _draw(0, B, _E), _draw(3, 2048, _E), _draw(4, 1024, _E), _draw(5, 128, _E)
        of_q, of_k = _draw(6, 2048, 64), _draw(7, 1024, 64)

        def add(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
            *pair, a, of_q, of_k, slots, owners = weights
            counts = jnp.zeros((4, 2), jnp.int32)
            return medium.project(x, pair, medium.LowRank(a, (of_q, of_k), slots, owners, counts))

        def added(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
            *pair, a, of_q, of_k, slots, owners = weights
            ranks = jnp.where(slots[:, None] == owners, _product(x, a), 0).astype(x.dtype)
            parts = jnp.split(ranks, 2, axis=1)
            return tuple(
                _product(x, weight) + _product(part, own)
                for weight, part, own in zip(pair, parts, (of_q, of_k), strict=True)
            )

        operands = (x, q, k, a, of_q, of_k, slots, owners)
        yield Launch(f"q and k of {B} rows with ranks", add, added, operands)


def _medium_codes() -> Iterator[Launch]:
    """Codes that tensor cores multiply, and each kind that is widened."""
    module = module_of("mosaic", "medium_codes")
    for scheme, B in (
        ("fp8", 20),
        ("fp8", 128),
        ("int8", 64),
        ("W4A16_ASYM", 50),
        ("W4A16_ASYM", 250),
    ):
        q, k, v = (_quantized(scheme, _draw(n, n, _E)) for n in (2048, 1024, 512))
        yield Launch(
            f"q, k, v of {B} rows, {scheme}",
            lambda x, *w: module.project(x, w),
            lambda x, *w: tuple(_product(*_wide(x, each)) for each in w),
            (_draw(0, B, _E), q, k, v),
        )
        gate, up = (_quantized(scheme, _draw(seed, _F, _E)) for seed in (6, 7))
        yield Launch(
            f"gate and up of {B} rows, {scheme}",
            module.gated,
            lambda x, gate, up: _gated(_wide(x, gate)[0], gate.matrix(x.dtype), up.matrix(x.dtype)),
            (_draw(0, B, _E), gate, up),
        )


def _large() -> Iterator[Launch]:
    """Fewer tiles than multiprocessors and more, the last of which have rows to spare."""
    large = module_of("mosaic", "large")
    for M in (136, 200, 256, 2048, 5000):
        q, k, v = (_quantized("fp8", _draw(n, n, _E)) for n in (2048, 1024, 512))
        x = _draw(0, M, _E)
        yield Launch(
            f"q, k, v of {M} rows",
            lambda x, *w: large.project(x, w),
            lambda x, *w: tuple(_product(*_wide(x, each)) for each in w),
            (x, q, k, v),
        )
        gate, up = (_quantized("fp8", _draw(seed, _F, _E)) for seed in (6, 7))
        yield Launch(
            f"gate and up of {M} rows",
            large.gated,
            lambda x, gate, up: _gated(_wide(x, gate)[0], gate.matrix(x.dtype), up.matrix(x.dtype)),
            (x, gate, up),
        )
    yield from _large_of_few_rows()


def _large_of_few_rows() -> Iterator[Launch]:
    """A tile for each multiprocessor, and a long contraction."""
    large, F = module_of("mosaic", "large"), 8192 + 512
    shapes = ((F, _E), (F, _E), (_E, 8192))
    gate, up, down = (_quantized("fp8", _draw(seed, *of)) for seed, of in enumerate(shapes))
    x, wide = _draw(3, 104, _E), _draw(4, 200, 8192)
    yield Launch(
        "gate and up of 104 rows",
        large.gated,
        lambda x, gate, up: _gated(_wide(x, gate)[0], gate.matrix(x.dtype), up.matrix(x.dtype)),
        (x, gate, up),
    )
    yield Launch(
        "down of 200 rows in two blocks",
        lambda x, w: large.project(x, [w]),
        lambda x, w: (_product(*_wide(x, w)),),
        (wide, down),
    )


def _experts() -> Iterator[Launch]:
    """Of few rows, of up to 256, which are one launch, and of more; a third is padding."""
    X, _, k = _EXPERTS
    norm, choose = _draw(5, _E), module_of("mosaic", "experts").choose
    for T in (1, 8, 17, 64, 200, 4096):
        yield _mixed(f"{T} rows", T, norm, _expert_matrices(), 0.03)
    yield _mixed("256 rows that choose alike", 256, norm, _expert_matrices(), 0.03, skewed=True)

    def expected(logits: jax.Array) -> Any:
        likely, chosen = jax.lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), k)
        order = jnp.argsort(chosen, axis=1)
        weights = jnp.take_along_axis(likely / likely.sum(axis=1, keepdims=True), order, axis=1)
        return jnp.take_along_axis(chosen, order, axis=1).T, weights.T

    def chosen(logits: jax.Array) -> Any:
        found = choose.choose(logits, k, normalize=True)
        return tuple(each[:, : len(logits)] for each in found)

    yield Launch("choice of 48 rows", chosen, expected, (_draw(3, 48, X),))


def _experts_of_codes() -> Iterator[Launch]:
    """Of few rows, of up to 256, which are one launch, and of more.

    An expert's inner values are quantized, too: where sums differ in their last bit, some become
    the next float8.
    """
    form, norm = Quantization.scheme("fp8"), _draw(5, _E)
    codes = tuple(QuantizedExperts(**quantize_weight(each, form)) for each in _expert_matrices())
    for T in (1, 8, 17, 64, 1024):
        yield _mixed(f"{T} rows", T, norm, codes, 0.06)
    yield _mixed("256 rows that choose alike", 256, norm, codes, 0.06, skewed=True)


_EXPERTS = 128, 256, 8  # how many, their width, and those of a token


def _expert_matrices() -> tuple[jax.Array, ...]:
    X, F, _ = _EXPERTS
    matrices = (_draw(6, X, F, _E), _draw(7, X, F, _E), _draw(8, X, _E, F))
    return tuple(each * each.shape[-1] ** -0.5 for each in matrices)


def _mixed(
    what: str, T: int, norm: jax.Array, matrices: Any, near: float, *, skewed: bool = False
) -> Launch:
    """The experts of T rows, a third of them padding; rows may choose one expert and few others."""
    X, _, k = _EXPERTS
    experts = module_of("mosaic", "experts")

    def read(x: jax.Array, gate: Any) -> jax.Array:
        if not isinstance(gate, QuantizedExperts):
            return rms_norm(x, norm, _EPS)
        # Before anything rounds it to bfloat16, as in `_small_quantized`.
        return gate[0].rounded_inputs(rms_norm(_float32(x), _float32(norm), _EPS)).astype(x.dtype)

    def mixed(kernels: Kernels, x: jax.Array, logits: jax.Array, *matrices: Any) -> jax.Array:
        mark = experts.places.supports(len(x), X, _E)
        columns = Columns(*experts.choose.choose(logits, k, normalize=True, mark=mark))
        hidden, rows = read(x, matrices[0]), len(x)
        chosen, weights = (each[:, :rows].T for each in columns[:2])
        # Codes are listed by themselves, others together with their choice.
        anew = None if isinstance(matrices[0], QuantizedExperts) else Logits(logits, normalize=True)
        routed = Routed(x, hidden, chosen, weights, columns, anew)
        is_token = jnp.arange(rows) % 3 != 1
        options: dict[str, Any] = {"is_token": is_token, "eps": _EPS, "kernels": kernels}
        return mix(routed, norm, matrices, **options, lacks_some=True)

    logits = _draw(9, T, X)
    if skewed:
        logits = logits + jnp.zeros(X, logits.dtype).at[:12].set(4.0).at[0].set(7.0)
    arguments = (_draw(T, T, _E), logits, *matrices)
    run, expected = (functools.partial(mixed, kernels) for kernels in (Kernels("mosaic"), XLA))
    return Launch(what, run, expected, arguments, near)


def _wide(x: jax.Array, linear: QuantizedLinear) -> tuple[jax.Array, jax.Array]:
    """What is left of inputs and of a weight once they were quantized."""
    return linear.rounded_inputs(x), linear.matrix(x.dtype)


def _add_norm() -> Iterator[Launch]:
    add_norm = module_of("mosaic", "add_norm").add_norm

    def expected(x: jax.Array, delta: jax.Array, weight: jax.Array) -> Any:
        total = x + delta
        return total, rms_norm(total, weight, _EPS)

    x, delta, weight = _draw(0, 1024, _E), _draw(1, 1024, _E), _draw(2, _E)
    yield Launch("1024 rows", functools.partial(add_norm, eps=_EPS), expected, (x, delta, weight))


def _add_norm_codes() -> Iterator[Launch]:
    """Beside the two kernels that it stands for, to the bit; both are compared with XLA, too."""
    kernel, add_norm = (
        getattr(module_of("mosaic", name), name) for name in ("add_norm_codes", "add_norm")
    )

    def run(x: jax.Array, weight: jax.Array, *new: jax.Array) -> Any:
        total, codes, scale = kernel(x, weight, *new, eps=_EPS)
        return total, codes, scale[:, : len(x)]

    def expected(x: jax.Array, weight: jax.Array, *new: jax.Array) -> Any:
        delta, *other = new or (jnp.zeros_like(x),)
        total, normal = add_norm(x, delta, weight, *other, eps=_EPS)
        codes, scale = quantize_groups(normal)
        return total, codes, scale[:, : len(x)]

    for T, E, count in ((24, _E, 1), (1024, 2 * _E, 2), (4096, 2560, 2), (264, 4096, 3)):
        terms = [_draw(seed, T, E) for seed in range(count)]
        arguments = (terms[0], _draw(3, E), *terms[1:])
        yield Launch(f"{T} rows of {E}", run, expected, arguments, 0.0)


def _silu_mul() -> Iterator[Launch]:
    def expected(gate: jax.Array, up: jax.Array) -> jax.Array:
        gate, up = gate.astype(jnp.float32), up.astype(jnp.float32)
        return (jax.nn.silu(gate) * up).astype(jnp.bfloat16)

    run = module_of("mosaic", "silu_mul").silu_mul
    yield Launch("1024 rows", run, expected, (_draw(0, 1024, _F), _draw(1, 1024, _F)))


def _all_reduce() -> Iterator[Launch]:
    """Over two GPUs; with one there is nothing to add."""
    if len(jax.devices()) < 2:
        return
    all_reduce = module_of("mosaic", "all_reduce").all_reduce
    mesh = jax.make_mesh((2,), ("tensor",), devices=jax.devices()[:2], axis_types=_AUTO)
    split = PartitionSpec("tensor")
    buffers = peer_buffers.allocate(peer_buffers.describe_peers(mesh, "tensor"))

    def add(x: jax.Array, peers: jax.Array) -> jax.Array:
        return all_reduce(x[0], peers[0])[None]

    run = jax.shard_map(add, mesh=mesh, in_specs=(split, split), out_specs=split, check_vma=False)

    def expected(x: jax.Array, peers: jax.Array) -> jax.Array:
        del peers
        total = x.astype(jnp.float32).sum(axis=0, keepdims=True)
        return jnp.broadcast_to(total.astype(x.dtype), x.shape)

    for B in (2, 64, 256):
        x = jax.device_put(_draw(0, 2, B, _E), NamedSharding(mesh, split))
        yield Launch(f"{B} rows", run, expected, (x, buffers.peers))


_AUTO = (jax.sharding.AxisType.Auto,)
_BY_OP: dict[TriedOp, Callable[[], Iterator[Launch]]] = {
    "decode": _decode,
    "prefill": _prefill,
    "norm_rope_write": _norm_rope_write,
    "small": _small,
    "medium": _medium,
    "medium_codes": _medium_codes,
    "large": _large,
    "experts": _experts,
    "experts of codes": _experts_of_codes,
    "add_norm": _add_norm,
    "add_norm_codes": _add_norm_codes,
    "silu_mul": _silu_mul,
    "all_reduce": _all_reduce,
}


def _float32(values: jax.Array) -> jax.Array:
    return values.astype(jnp.float32)


def _product(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.einsum("bi,oi->bo", x, weight, preferred_element_type=jnp.float32).astype(x.dtype)


def _gated(x: jax.Array, gate: jax.Array, up: jax.Array) -> jax.Array:
    gate, up = (_product(x, each).astype(jnp.float32) for each in (gate, up))
    return (jax.nn.silu(gate) * up).astype(x.dtype)


def _draw(seed: int, *shape: int) -> jax.Array:
    """Normal values, of which a product's are as large again."""
    scale = shape[-1] ** -0.5 if len(shape) == 2 and shape[0] >= _E else 1.0
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32) * scale
    return jnp.asarray(drawn, jnp.bfloat16)
