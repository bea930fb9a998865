"""Music under speech: repeated without a click, lowered while somebody speaks, faded out."""

import pytest
import torch
from higgs_tts.engine import Bed
from higgs_tts.engine.audio.bed import stretches

RATE = 1000


def test_pauses_shorter_than_a_moment_keep_the_music_down():
    assert stretches([(5.0, 6.0), (0.0, 1.0), (2.0, 3.0)]) == [(0.0, 3.0), (5.0, 6.0)]


def test_it_is_lowered_during_speech_and_faded_out():
    bed = Bed(torch.ones(2, 3000), RATE, [(2.0, 4.0), (6.0, 7.0)], 10_000, 20.0)
    out = bed.piece(0, 10_000)
    assert out.shape == (2, 10_000) and torch.equal(out[0], out[1])
    for second, gain in (
        (0.0, 1),
        (1.7, 1),
        (2.0, 0.1),
        (3.9, 0.1),
        (4.6, 1),
        (5.5, 1),
        (6.5, 0.1),
        (8.9, 1),
        (9.5, 0.5),
    ):
        assert float(out[0, round(second * RATE)]) == pytest.approx(gain, abs=0.01), second
    assert float(out[0, -1]) < 0.01
    parts = [bed.piece(at, min(at + 777, 10_000)) for at in range(0, 10_000, 777)]
    assert torch.equal(torch.cat(parts, 1), out), "in any pieces"


def test_its_end_fades_into_its_start():
    wav = torch.linspace(0, 1, 4000)[None]  # a jump of 1 at its end
    out = Bed(wav, RATE, [], 20_000, 15.0).piece(0, 18_000)
    assert float(out.diff().abs().max()) < 0.002
    assert torch.equal(out[:, 4000:6500], out[:, 7000:9500]), "a period of 3 s"


@pytest.mark.parametrize("length", [0, 1, 2, 999])
def test_very_short_music_is_repeated_too(length):
    out = Bed(torch.full((1, length), 0.5), RATE, [(0.0, 1.0)], 3000, 6.0).piece(0, 3000)
    assert out.shape == (1, 3000) and torch.isfinite(out).all() and float(out.abs().max()) <= 0.5
