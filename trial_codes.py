"""Times products of codes, old and new, in chains of launches with different weights.

python trial_codes.py small [int4] [fp8] [rows]
python trial_codes.py medium
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.int4 import pack
from jaxinfer.kernels.matmul.mosaic import medium_codes, nibbles, small, small_codes_plan
from jaxinfer.kernels.matmul.mosaic.medium_codes_plan import MediumCodesConfig, choose
from jaxinfer.kernels.matmul.mosaic.small_codes_plan import CodesPlan, plan_codes
from jaxinfer.kernels.matmul.mosaic.small_plan import SmallConfig
from jaxinfer.kernels.matmul.quantized import QuantizedLinear

E, F, EPS, L = 4096, 12288, 1e-6, 24
B = next((int(a) for a in sys.argv[1:] if a.isdigit()), 1)
FORMS = [f for f in ("int4", "fp8") if f in sys.argv] or ["int4", "fp8"]
NIBBLES = CodesPlan.has_nibbles
SHAPES = {
    "qkv": [(4096, E), (1024, E), (1024, E)],
    "o": [(E, E)],
    "gated": [(F, E), (F, E)],
    "down": [(E, F)],
}
# (splits, stages, consumers, piece); None is the plan's own.
SIZES = {
    "int4": {
        "qkv": ["old", None, (1, 4, 4), (2, 4, 2), (2, 3, 4), (1, 8, 2), (4, 4, 2)],
        "o": ["old", None, (2, 4, 4), (4, 4, 2), (4, 2, 2), (2, 8, 2)],
        "gated": [
            "old",
            None,
            (1, 3, 4),
            (1, 2, 2),
            (1, 3, 2),
            (1, 4, 2),
            (2, 4, 2),
            (1, 2, 4, 2048),
            (1, 2, 4, 1024, "later"),
        ],
        "down": [
            "old",
            None,
            (2, 6, 4),
            (4, 3, 2),
            (4, 6, 2),
            (4, 6, 2, 2048),
            (4, 6, 2, 1024, "later"),
        ],
    },
    "fp8": {
        "qkv": [None, (1, 3, 4), (2, 3, 2), (1, 3, 2)],
        "o": [None, (2, 3, 4), (4, 3, 2), (2, 4, 2)],
        "gated": [None, (1, 2, 2), (1, 1, 2), (1, 4, 1), (2, 2, 2)],
        "down": [None, (2, 3, 4), (4, 3, 2), (4, 5, 2)],
    },
}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def draw(form, O, I, key):
    a, b = jax.random.split(jax.random.key(key))
    if form == "int4":
        codes = jax.random.bits(a, (O, I // 2), jnp.uint8)
        scale = jax.random.uniform(b, (O, I // 128), minval=0.5, maxval=1.5) / (5 * I**0.5)
        return QuantizedLinear(codes, scale)
    codes = jax.random.bits(a, (O, I), jnp.uint8) & 0xF7
    scale = jax.random.uniform(b, (O // 128, I // 128), minval=0.5, maxval=1.5) / (100 * I**0.5)
    codes = jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)
    return QuantizedLinear(codes, scale, inputs="group")


def normed(x):
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS)


@functools.partial(jax.jit, static_argnums=0)
def reference(name, x, weights):
    hidden = normed(x) if name in ("qkv", "gated") else x.astype(jnp.float32)

    def times(w):
        inputs = w.rounded_inputs(hidden)
        return jnp.dot(inputs, w.matrix(jnp.float32).T, precision="highest")

    if name == "gated":
        return [jax.nn.silu(times(weights[0])) * times(weights[1])]
    out = [times(w) for w in weights]
    return out if name == "qkv" else [out[0] + x[:, :E].astype(jnp.float32)]


def product(name, config):
    norm = jnp.ones((E,), jnp.bfloat16)
    if name == "qkv":
        return lambda x, w: small.norm_project(x, norm, w, eps=EPS, config=config)
    if name == "gated":
        return lambda x, w: [small.norm_gated(x, norm, *w, eps=EPS, config=config)]
    return lambda x, w: [small.project_add(x, w[0], x[:, :E], config=config)]


def measure(form, name, size, layers, x):
    CodesPlan.has_nibbles = property(lambda _: False) if size == "old" else NIBBLES
    given = size if isinstance(size, tuple) else ()
    small_codes_plan._PIECE = given[3] if len(given) > 3 else 1024
    nibbles.SUBTRACTS_FIRST = len(given) < 5
    config = SmallConfig(given[0], given[1], 128, given[2]) if given else None
    kind = {"qkv": "plain", "gated": "gated"}.get(name, "residual")
    shapes = SHAPES[name]
    w = layers[0]
    p = plan_codes(kind, B, shapes, EPS, config, w[0].form, has_norm=kind != "residual")
    c = p.config
    label = f"{c.splits},{c.stages},{c.consumers}" + (f" {given[3]}" if len(given) > 3 else "")
    label += " later" if len(given) > 4 else ""
    label = f"{label} {'old' if size == 'old' else 'own' if size is None else ''}"
    began = time.perf_counter()
    one = jax.jit(product(name, config))

    @jax.jit
    def chain(x, layers):
        kept = []
        for w in layers:
            out = one(x, w)
            kept += out
            x = out[0]
            x = jnp.tile(x, (1, 3)) if name == "down" else x[:, :E]
        return x, kept

    wanted = reference(name, x, w)
    got = chain(x, layers)[1][: len(wanted)]
    errors = [
        float(jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b))
        for a, b in zip(got, wanted, strict=True)
    ]
    report(form, B, name, label, lambda: chain(x, layers), w, errors, began)


def report(form, rows, name, label, run, w, errors, began, launches=L):
    for _ in range(2):
        jax.block_until_ready(run())
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(4):
            found = run()
        jax.block_until_ready(found)
        times.append((time.perf_counter() - start) / (4 * launches) * 1e6)
    us = min(times)
    size_bytes = sum(each.nbytes for each in jax.tree.leaves(w))
    print(
        f"{form} B={rows} {name:5} {label:16} {us:7.2f} us (median {np.median(times):.2f}) "
        f"{size_bytes / us / 1e6:5.2f} TB/s error {max(errors):.1e} "
        f"{'WRONG' if not max(errors) < 6e-3 else ''} [{time.perf_counter() - began:.1f} s]",
        flush=True,
    )


# (consumers, rows, stages, splits, blocks that share rows); "bf16" is XLA's by the plain weight.
MEDIUM = {
    ("int4", 256): {
        "gated": [None, (2, 128, 5, 1, 2), (2, 128, 5, 1, 1), (3, 64, 7, 1, 2), "bf16"],
        "down": [None, (2, 128, 5, 1, 2), (2, 64, 8, 1, 2), "bf16"],
        "qkv": [None, (2, 128, 5, 1, 2), (3, 64, 7, 1, 2), (2, 64, 8, 1, 2)],
        "o": [None, (2, 128, 5, 1, 2), (2, 64, 8, 1, 2), (1, 64, 8, 1, 2)],
    },
    ("int4", 128): {
        "gated": [None, (2, 128, 5, 1, 2), (3, 64, 7, 1, 2)],
        "down": [None, (2, 64, 8, 1, 2), (1, 64, 8, 1, 2)],
    },
    ("int4", 64): {"gated": [None, (3, 64, 7, 1, 2), (2, 64, 8, 1, 2)]},
    ("fp8", 128): {"gated": [None, (2, 128, 6, 1, 2), (2, 128, 6, 1, 1)]},
}


def measure_medium(form, rows, name, size, layers, x):
    began = time.perf_counter()
    w, shapes = layers[0], SHAPES[name]
    config = MediumCodesConfig(*size) if isinstance(size, tuple) else None
    chosen = config or choose(rows, shapes, x.dtype, w[0].form, matrices=1 + (name == "gated"))
    label = f"{chosen.consumers},{chosen.rows},{chosen.stages},{chosen.splits},{chosen.share_rows}"
    if size == "bf16":
        label = "bf16 by XLA"
        layers = [[jax.jit(lambda e: e.matrix(jnp.bfloat16))(e) for e in each] for each in layers]

    @jax.jit
    def one(x, w):
        if size == "bf16":
            out = [jax.lax.dot_general(x, each, (((1,), (1,)), ((), ()))) for each in w]
            return [jax.nn.silu(out[0]) * out[1]] if name == "gated" else out
        if name == "gated":
            return [medium_codes.gated(x, *w, config=config)]
        return list(medium_codes.project(x, w, config=config))

    @jax.jit
    def chain(first, layers):
        x, kept = first, []
        for w in layers:
            out = one(x, w)
            kept += out
            x = jnp.tile(out[0], (1, 3)) if name == "down" else first + out[0][:, :E]
        return x, kept

    def times(w):
        return jnp.dot(
            w.rounded_inputs(x).astype(jnp.float32), w.matrix(jnp.float32).T, precision="highest"
        )

    wanted = jax.jit(lambda w: [times(each) for each in w])(w)
    if name == "gated":
        wanted = [jax.nn.silu(wanted[0]) * wanted[1]]
    got = chain(x, layers)[1][: len(wanted)]
    errors = [
        float(jnp.linalg.norm(a.astype(jnp.float32) - b) / jnp.linalg.norm(b))
        for a, b in zip(got, wanted, strict=True)
    ]
    report(form, rows, name, label, lambda: chain(x, layers), w, errors, began)


def unpacked_by_joining(packed):
    pairs = jnp.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def measure_matrices():
    """The plain weights of gate and up, as XLA writes them for prompts."""
    import jaxinfer.kernels.int4 as int4

    layers = [draw("int4", F, E, i) for i in range(12)]
    assert (pack(int4.unpack(layers[0].weight)) == layers[0].weight).all()
    for label, unpack in (("joined", unpacked_by_joining), ("shifted", int4.unpack)):
        began = time.perf_counter()
        int4.unpack = unpack
        run = jax.jit(lambda layers: [each.matrix(jnp.bfloat16) for each in layers])
        report("int4", 0, "plain", label, lambda: run(layers), layers[0], [0.0], began, 12)


def drawn(form, name):
    return [[draw(form, *s, 10 * i + j) for j, s in enumerate(SHAPES[name])] for i in range(L)]


def tried(measure, *arguments):
    try:
        measure(*arguments)
    except Exception as error:
        names = [each for each in arguments if isinstance(each, str | int | tuple) or each is None]
        print(*names, "failed:", str(error)[:150].replace("\n", " "), flush=True)


def main():
    began = time.perf_counter()
    if "medium" in sys.argv:
        tried(measure_matrices)
        for (form, rows), products in MEDIUM.items():
            for name, sizes in products.items():
                layers = drawn(form, name)
                x = jax.random.normal(jax.random.key(7), (rows, SHAPES[name][0][1]))
                for size in sizes:
                    tried(measure_medium, form, rows, name, size, layers, x.astype(jnp.bfloat16))
    else:
        for form in FORMS:
            for name in ("gated", "down", "qkv", "o"):
                layers = drawn(form, name)
                x = jax.random.normal(jax.random.key(7), (B, SHAPES[name][0][1]))
                for size in SIZES[form][name]:
                    tried(measure, form, name, size, layers, x.astype(jnp.bfloat16))
    print(f"total {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
