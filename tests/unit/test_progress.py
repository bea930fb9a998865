"""Progress on stderr: a bar in a terminal, few plain lines in a log."""

import dataclasses
import io
import re
import sys

import pytest
import torch
from higgs_tts.engine import BookProgress, SpeechResult
from higgs_tts.engine.tools.progress import book_bar, with_bar

FRAMES, FRAME_SECONDS = 1000, 0.0455
SPEECH = SpeechResult(torch.zeros(0), torch.zeros(FRAMES, 8, dtype=torch.int64), 45.0, 1, "end of speech")
AT = BookProgress(0.0, 600.0, 1, 2, "One")


@pytest.fixture
def clock(monkeypatch):
    """clock(seconds) lets time pass for tqdm, which else stands still."""
    now = [1e9]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def run(seconds):
        now[0] += seconds

    return run


def speak(clock):
    def spoken(listener):
        for frame in range(1, FRAMES + 1):
            clock(FRAME_SECONDS)
            listener.on_frame(frame, FRAMES)
        return SPEECH

    assert with_bar(spoken) is SPEECH


def narrate(clock):
    with book_bar() as on_progress:
        for number in range(FRAMES):
            clock(FRAME_SECONDS)
            on_progress(dataclasses.replace(AT, share=number / FRAMES))


@pytest.mark.parametrize(
    ("run", "first", "last"),
    [
        (speak, "speaking: 0 of ? frames in 00:00, ? left", "speaking: 1000 of 1000 frames in 00:45, 00:00 left"),
        (narrate, "starting, 0 %", "chapter 1 of 2, 10 min left, 100 %"),
    ],
)
def test_a_log_gets_a_line_every_ten_seconds_and_a_last_one(clock, capsys, run, first, last):
    run(clock)
    written = capsys.readouterr().err
    lines = written.splitlines()
    assert "\r" not in written and "|" not in written and all(lines)
    assert (lines[0], lines[-1]) == (first, last)
    assert len(lines) == 1 + 4 + 1, "it took 45 seconds"


def test_short_speech_has_two_lines(clock, capsys):
    with_bar(lambda listener: SPEECH)
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(("run", "last"), [(speak, r"speaking: 100%\|.*1000/1000"), (narrate, r"left 100 %\|")])
def test_a_terminal_gets_a_bar_in_one_place(clock, monkeypatch, run, last):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    run(clock)
    states = terminal.getvalue().split("\r")
    assert len(states) > 100 and terminal.getvalue().count("\n") == 1
    assert re.search(last, states[-1])
