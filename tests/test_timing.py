"""No test of the default suite asserts a time, which a busy machine would fail."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
_CLOCK = r"(?:monotonic|perf_counter|process_time|thread_time|\btime\.time)(?:_ns)?\(\)"
_DURATION = re.compile(rf"{_CLOCK} - |- (?:\w+\.)?{_CLOCK}|\bru_[us]time\b")
MAY_TAKE_TIME = {
    "linear.py": "compares two sizes",
    "serving/recording/test_step_timer.py": "the steps' times are parts of a longer one",
    "server/openai/page/test_chat_in_browser.py": "compares the page with a plain client",
    "kernels/collectives/test_mosaic_all_reduce.py": "on a GPU, of a time limit on the device",
}


def test_durations_are_taken_only_to_be_compared_with_each_other():
    """A deadline that only guards against hanging needs no duration."""
    files = [file for file in TESTS.rglob("*.py") if file != Path(__file__)]
    found = {str(f.relative_to(TESTS)) for f in files if _DURATION.search(f.read_text())}
    assert found == MAY_TAKE_TIME.keys(), "use tests/linear.py or tests/call_count.py"
