"""The absence of an optional package is one error, which names what to install."""

import importlib
import json
import sys

import pytest

from jaxinfer import MissingPackageError
from jaxinfer.optional import import_optional


def test_a_module_that_is_there_is_imported():
    assert import_optional("json", needed_by="a test", install="x") is json


@pytest.mark.parametrize(
    ("integration", "package", "install"),
    [
        ("ray_serve", "ray", r"jaxinfer\[ray\]"),
        ("tunix", "tunix", r"google-tunix==0\.1\.7"),
        (
            "tunix_sampler",
            "tunix",
            r"google-tunix==0\.1\.7' && pip install --no-deps 'git\+https://github.com/google/tunix",
        ),
    ],
)
def test_an_integration_names_its_package(integration, package, install, monkeypatch):
    name = f"jaxinfer.integrations.{integration}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    message = rf"{name} needs the package {package} \(pip install '{install}'\)"
    with pytest.raises(MissingPackageError, match=message) as caught:
        importlib.import_module(name)
    assert (type(caught.value.__cause__), caught.value.name) == (ModuleNotFoundError, package)
