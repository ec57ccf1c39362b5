"""Engines that fetch whatever the tiers hold."""

from collections.abc import Iterator

import pytest

from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from tests.serving.prefix_tiers.always_fetching import always_worth


@pytest.fixture(scope="module")
def always_fetching() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FetchPolicy, "is_worth", always_worth)
        yield
