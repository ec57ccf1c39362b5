import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention import choose_backend, paged_attention

_HOPPER = {"platform": "gpu", "compute_capability": (9, 0)}
_CPU = {"platform": "cpu", "compute_capability": None}


def _choose(requested, *, head_dim=128, dtype="bfloat16", block_size=16, group_size=2, **device):
    return choose_backend(
        requested,
        head_dim=head_dim,
        dtype=dtype,
        block_size=block_size,
        group_size=group_size,
        **device,
    )


def test_auto_takes_xla_on_a_cpu_and_says_why():
    assert _choose("auto", **_CPU) == ("xla", "cpu")


def test_auto_takes_mosaic_on_hopper():
    name, reason = _choose("auto", **_HOPPER)
    assert name == "mosaic"
    assert "9.0" in reason


@pytest.mark.parametrize("change", [{"head_dim": 96}, {"dtype": "float32"}, {"group_size": 32}])
def test_auto_falls_to_xla_where_no_kernel_serves_the_model(change):
    name, reason = _choose("auto", **_HOPPER, **change)
    assert name == "xla"
    assert str(next(iter(change.values()))) in reason


def test_triton_needs_its_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    device = {"platform": "gpu", "compute_capability": (8, 6)}
    assert _choose("auto", **device)[0] == "xla"
    with pytest.raises(ValueError, match="jax-triton"):
        _choose("triton", **device)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert _choose("auto", **device)[0] == "triton"


@pytest.mark.parametrize(
    ("requested", "device", "change", "cause"),
    [
        ("mosaic", _CPU, {}, "Hopper"),
        ("mosaic", {"platform": "gpu", "compute_capability": (8, 0)}, {}, "Hopper"),
        ("mosaic", _HOPPER, {"head_dim": 80}, "head_dim 64 or 128, not 80"),
        ("triton", _CPU, {}, "8.0 or higher"),
        ("triton", _HOPPER, {"dtype": "float32"}, "bfloat16 or float16, not float32"),
    ],
)
def test_an_impossible_request_is_an_error_that_lists_what_is_supported(
    requested, device, change, cause
):
    with pytest.raises(ValueError, match=cause) as error:
        _choose(requested, **device, **change)
    assert f"attention_backend={requested!r}" in str(error.value)
    assert str(error.value).endswith("xla")


def test_xla_is_always_possible():
    assert _choose("xla", **_HOPPER) == ("xla", "requested")


def test_kernels_refuse_to_drop_the_causal_mask():
    q, pages = jnp.zeros((2, 2, 64)), jnp.zeros((2, 8, 1, 64))
    ints = jnp.zeros(2, jnp.int32)
    with pytest.raises(ValueError, match="causal only"):
        paged_attention(
            q, pages, pages, ints, ints[:1], ints[None], scale=1.0, causal=False, backend="mosaic"
        )
