"""A child process of the server, seen from its own side."""

import gc

from jaxinfer.cli.service.child import freeze_heap


def test_objects_that_are_loaded_before_a_child_serves_are_never_collected():
    kept = [[] for _ in range(1000)]
    before = gc.get_freeze_count()
    freeze_heap()
    assert gc.get_freeze_count() >= before + len(kept)
