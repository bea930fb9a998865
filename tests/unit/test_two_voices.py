"""Clips of two people, found among clips of one voice by their pitch and timbre."""

import itertools

import soundfile
import torch
from higgs_tts.engine import BUILT_IN_CLIPS
from higgs_tts.engine.finetune.two_voices import voice_changes, with_two_voices

VOICES = sorted(path.stem for path in BUILT_IN_CLIPS.glob("*.flac"))


def sound(name):
    return torch.from_numpy(soundfile.read(BUILT_IN_CLIPS / f"{name}.flac", dtype="float32")[0])


def parts(name):
    return sound(name).tensor_split(3)


def test_clips_of_one_voice_pass():
    alone = [voice_changes(sound(name)) for name in VOICES]
    assert all(len(one) for one in alone) and not any(with_two_voices(alone))


def test_most_pairs_of_the_built_in_voices_are_found():
    """Each is judged alone beside nine clips of the first voice, its parts in any order."""
    found = refused = 0
    for first in VOICES:
        own = [voice_changes(torch.cat([*pair, pair[0]])) for pair in itertools.product(parts(first), repeat=2)]
        for second in VOICES:
            if second != first:
                *one, two = with_two_voices([*own, voice_changes(torch.cat([*parts(first)[:2], sound(second)]))])
                found, refused = found + two, refused + any(one)
    assert found >= 50 and not refused, (found, refused)


def test_short_clips_and_none_have_one_voice():
    assert with_two_voices([]) == []
    short = voice_changes(sound("amber")[:24_000])
    assert short.shape == (0, 13) and with_two_voices([short, voice_changes(torch.zeros(10))]) == [False, False]
    assert voice_changes(torch.zeros(72_000)).shape == (0, 13)
