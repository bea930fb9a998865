"""The text under a node's bar."""

from __future__ import annotations

import pytest


@pytest.fixture
def text(load_module, comfy, monkeypatch):
    """progress_text with a manual clock: text.now"""
    module = load_module("comfy.progress_text")
    comfy["server"].PromptServer.instance.client_id, comfy["server"].PromptServer.instance.last_node_id = "me", "7"
    module.now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: module.now)
    return module


def test_progress_shows_seconds_spoken_and_left(text, comfy):
    with text.TimeLeft() as bar:
        for second in range(41):
            text.now = 100.0 + second / 10
            bar.step(25 * second, 2500)
    *told, last = [line for line, *_ in comfy["server"].told]
    assert last == "40.0 s spoken", "the page leaves it there"
    assert told[0] == "5.0 s of about 1.7 min spoken, 10 s left"
    assert told[-1] == "40.0 s of about 1.7 min spoken, 6 s left"
    assert len(told) == 8 and {one[1:] for one in comfy["server"].told} == {("7", "me")}


@pytest.mark.parametrize("speed, told", [(1.0, "10 min left"), (0.1, "1 h 44 min left")])
def test_long_waits_are_shown_in_minutes_and_hours(text, comfy, speed, told):
    bar = text.TimeLeft()
    bar.step(0, 25_000)
    text.now += 40 / speed
    bar.step(1500, 25_000)
    assert comfy["server"].told[-1][0].endswith(told)


def test_an_interrupted_run_says_so(text, comfy, interrupted):
    with pytest.raises(interrupted), text.TimeLeft() as bar:
        bar.step(25, 2500)
        text.now += 1
        bar.step(50, 2500)
        raise interrupted
    assert [line for line, *_ in comfy["server"].told] == ["2.0 s of about 1.7 min spoken, 49 s left", "stopped"]


def test_a_line_is_shown_once_and_none_outside_a_node(text, comfy):
    with text.TimeLeft() as quick, pytest.raises(ValueError):
        quick.step(1, 2)
        raise ValueError
    assert comfy["server"].told == [], "nothing was shown before"
    line = text.NodeText("9")
    for said in ("0.1 of 9.3 GB", "0.1 of 9.3 GB", "0.2 of 9.3 GB"):
        line.show(said)
    assert comfy["server"].told == [("0.1 of 9.3 GB", "9", "me"), ("0.2 of 9.3 GB", "9", "me")]
    comfy["server"].PromptServer.instance.last_node_id = None
    text.NodeText().show("nobody")
    assert len(comfy["server"].told) == 2


@pytest.mark.parametrize("why", ["a script queued it", "no server"])
def test_no_progress_is_sent_without_a_client(text, comfy, monkeypatch, why):
    """Without a client ComfyUI would tell every page."""
    if why == "no server":
        monkeypatch.delattr(comfy["server"].PromptServer, "instance")
    else:
        comfy["server"].PromptServer.instance.client_id = None
    text.NodeText("9").show("0.1 of 9.3 GB")
    assert comfy["server"].told == []
