"""Other weights, wherever they differ, have another fingerprint; the same ones have the same."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.serving.processes.description import file_fingerprint, params_fingerprint
from tests.model import tiny


@pytest.mark.parametrize("kind", ["safetensors", "orbax"])
def test_files_with_other_values_have_another_fingerprint(kind, tmp_path):
    def save(name, scale):
        params = jax.tree.map(lambda leaf: leaf * scale, tiny.params(tiny.CONFIG))
        if kind == "orbax":
            checkpoint.save(params, tmp_path / name)
        else:
            save_params(params, tiny.CONFIG, tmp_path / name)

    save("one", 1)
    save("other", 2)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    one, copy, other = (file_fingerprint(tmp_path / name) for name in ("one", "copy", "other"))
    assert one == copy
    assert one != other


@pytest.mark.parametrize("as_host_array", [np.asarray, jnp.asarray])
def test_arrays_with_other_values_have_another_fingerprint(as_host_array):
    params = jax.tree.map(as_host_array, tiny.params(tiny.CONFIG))
    changed = jax.tree.map(lambda leaf: leaf, params)
    changed["model"]["norm"] = changed["model"]["norm"] * 2
    assert params_fingerprint(params) == params_fingerprint(dict(params))
    assert params_fingerprint(params) != params_fingerprint(changed)
