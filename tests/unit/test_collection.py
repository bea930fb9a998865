"""Pauses of Python's garbage collection."""

from __future__ import annotations

import gc
import threading
import weakref

from higgs_tts.engine.device.collection import uncollected


class Garbage:
    """Refers to itself."""

    def __init__(self):
        self.itself = self


def allocate(count):
    return [[] for _ in range(count)]


def test_nothing_is_collected_meanwhile_nor_at_once_then():
    gc.collect()
    died = weakref.ref(Garbage())
    with uncollected():
        kept = allocate(5000)
        with uncollected():
            kept += allocate(5000)
        kept += allocate(5000)
        assert died() is not None
    kept += allocate(gc.get_threshold()[0] // 2)
    assert died() is not None and gc.isenabled()
    gc.collect()
    assert died() is None


def test_a_pause_ends_with_the_last_of_two_threads():
    begun, ended = threading.Event(), threading.Event()

    def pause():
        with uncollected():
            begun.set()
            ended.wait(60)

    other = threading.Thread(target=pause)
    with uncollected():
        other.start()
        assert begun.wait(60)
    assert not gc.isenabled()
    ended.set()
    other.join(60)
    assert gc.isenabled()


def test_collection_that_was_off_stays_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_server_froze_stays_frozen():
    gc.freeze()
    try:
        with uncollected():
            pass
        assert gc.get_freeze_count() and gc.isenabled()
    finally:
        gc.unfreeze()
