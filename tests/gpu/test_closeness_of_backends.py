"""As for the settings, for attention implementations that "auto" does not take on Hopper."""

import pytest

from tests.gpu.backends import skip_if_impossible
from tests.gpu.bundled import SETTINGS
from tests.gpu.bundled_closeness import measure_bundled

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("backend", ["triton", "xla"])
def test_whatever_the_attention_backend(hugging_face, backend, record_property):
    skip_if_impossible(backend)
    closeness = measure_bundled(hugging_face, SETTINGS[2], backend)
    assert closeness.backend == backend
    record_property("closeness", str(closeness))
    closeness.check()
