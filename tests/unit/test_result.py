"""Durations as users read them."""

import pytest
from higgs_tts.engine.speech.result import duration


@pytest.mark.parametrize(
    ("seconds", "digits", "told"),
    [
        (4.25, 2, "4.25 s"),
        (89.9, 1, "89.9 s"),
        (89.9, 0, "90 s"),
        (90, 1, "1.5 min"),
        (452, 0, "8 min"),
        (452, 1, "7.5 min"),
        (5399, 1, "90.0 min"),
        (5400, 1, "1 h 30 min"),
        (36_000, 0, "10 h 0 min"),
    ],
)
def test_long_durations_are_written_in_minutes(seconds, digits, told):
    assert duration(seconds, digits) == told
