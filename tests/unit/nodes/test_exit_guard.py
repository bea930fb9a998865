"""Nodes at the end of the process: the process waits for the node, and the node stops at its next check."""

from __future__ import annotations

import atexit
import threading

import pytest


@pytest.fixture
def guard(load_module):
    return load_module("comfy.exit_guard")


@pytest.fixture
def nodes(load_module):
    return load_module("comfy.node_errors")


def gets_in(guard, seconds):
    """True if another node may begin its work."""
    inside = threading.Event()

    def node():
        with guard.node_work():
            inside.set()

    threading.Thread(target=node, daemon=True).start()
    return inside.wait(seconds)


@pytest.fixture
def busy(guard, nodes):
    """A thread in which a node works and checks for interrupts, and must never return."""
    started, ended = threading.Event(), []

    def node():
        with nodes.node_errors("Higgs Speak"):
            started.set()
            while True:
                nodes.check_interrupt()
        ended.append(True)

    worker = threading.Thread(target=node, daemon=True)
    worker.start()
    started.wait()
    yield
    guard.wait_for_node()
    atexit.unregister(guard.wait_for_node)  # the lock is taken for good: the exit of these tests would wait for it
    assert not gets_in(guard, 0.2), "the next node must wait for good"
    assert worker.is_alive() and not ended


def test_exiting_stops_a_node_at_its_next_check(busy):
    """The fixture asserts it."""


def test_downloads_and_nodes_stop_with_the_server(guard, nodes, comfy, busy):
    assert not nodes.is_interrupted()
    comfy["server"].running = False
    assert nodes.is_interrupted()
    assert gets_in(guard, 60), "the node goes on"


def test_scripts_without_a_server_are_not_stopped(nodes, comfy):
    comfy["server"].running = False
    with nodes.node_errors("Higgs Speak"):
        nodes.check_interrupt()
        assert not nodes.is_interrupted()
