"""What Python's end does to engines that are open."""

import subprocess
import sys

_PROGRAM = """
import weakref
from jaxinfer.serving.driver.live_drivers import note_driver

class Driver:
    def close(self):
        print("the driver closes")

class Other:
    pass

driver, other = Driver(), Other()
weakref.finalize(other, print, "a finalizer runs")
note_driver(driver)
"""


def test_engines_close_before_finalizers_run():
    """Those of JAX belong to traces that other threads may be in."""
    command = [sys.executable, "-c", _PROGRAM]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "the driver closes\na finalizer runs\n"
