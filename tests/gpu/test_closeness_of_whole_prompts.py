"""As for the settings, with prompts that are read whole."""

import pytest

from tests.gpu.bundled import SETTINGS
from tests.gpu.bundled_closeness import measure_bundled

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.budget], ids=str)
def test_whatever_the_settings_of_whole_prompts(hugging_face, setting, record_property):
    closeness = measure_bundled(hugging_face, setting, "auto")
    record_property("closeness", str(closeness))
    closeness.check()
    assert setting.tight == bool(closeness.num_preemptions)
