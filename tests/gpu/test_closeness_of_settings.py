"""In bfloat16 the engine with its kernels is as near Hugging Face's float32 as Hugging Face's own
bfloat16 is, however it batches: here with prompts in chunks."""

import pytest

from tests.gpu.bundled import SETTINGS
from tests.gpu.bundled_closeness import measure_bundled

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.budget], ids=str)
def test_whatever_the_settings(hugging_face, setting, record_property):
    closeness = measure_bundled(hugging_face, setting, "auto")
    record_property("closeness", str(closeness))
    closeness.check()
    assert setting.tight == bool(closeness.num_preemptions)
