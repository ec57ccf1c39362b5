"""A child process of the server, seen from its own side."""

import gc
import io

from jaxinfer.cli.service.child import report_ready


def test_objects_that_are_loaded_before_a_child_is_ready_are_never_collected():
    kept = [[] for _ in range(1000)]
    before, reports = gc.get_freeze_count(), io.StringIO()
    report_ready(reports)
    assert reports.getvalue() == "ready\n"
    assert gc.get_freeze_count() >= before + len(kept)
