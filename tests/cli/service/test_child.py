"""A child process of the server, seen from its own side."""

import gc

from jaxinfer.cli.service.child import collect_less_often, freeze_heap


def test_objects_that_are_loaded_before_a_child_serves_are_never_collected():
    kept = [[] for _ in range(1000)]
    before = gc.get_freeze_count()
    freeze_heap()
    assert gc.get_freeze_count() >= before + len(kept)


def test_a_steps_rows_start_no_collection():
    before, collections = gc.get_threshold(), []

    def note(phase, info):
        collections.append(info)

    collect_less_often()
    gc.collect()
    gc.callbacks.append(note)
    try:
        rows = [[number] for number in range(5000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert len(rows) == 5000
    assert not collections
