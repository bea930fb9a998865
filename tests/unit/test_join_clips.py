"""Several clips of one speaker: which parts become the reference, and what is told of the others."""

import math

import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, SAMPLE_RATE, HiggsError, NamedClip, join_clips, read_clip, transcript_of
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.audio.resample import resample
from higgs_tts.engine.prompt.lengths import misfit
from higgs_tts.engine.voice.reference import LOUDNESS

NAMES = ("oliver", "amber", "henry", "clara", "jack", "ruth")  # as if of one speaker


def clip(name, change=lambda wav: wav, words=None, rate=SAMPLE_RATE):
    path = BUILT_IN_CLIPS / f"{name}.flac"
    wav, own = read_clip(path)
    wav = resample(torch.from_numpy(wav)[0], own, rate)[None]
    return NamedClip(change(wav), rate, transcript_of(path)[0] if words is None else words, name)


def noisy(decibels):
    """Return a change that adds noise, so many dB below the clip."""

    def add(wav):
        noise = torch.randn(wav.shape, generator=torch.Generator().manual_seed(1))
        return wav + noise * wav.square().mean().sqrt() * 10 ** (-decibels / 20)

    return add


def tone(wav):
    return 0.1 * torch.sin(torch.arange(wav.shape[-1]) / 9)[None]


def overdriven(wav):
    return (8 * wav).clamp(-1, 1)


CASES = {  # name: (clips, names of those taken, what is told of others)
    "all are good": ([clip("oliver"), clip("amber")], "oliver, amber", []),
    "in their order, not by quality": ([clip("amber", noisy(22)), clip("oliver")], "amber, oliver", []),
    "noise": (
        [clip("oliver", noisy(6)), clip("amber")],
        "amber",
        ["oliver was left out. The speech is only 10 dB above"],
    ),
    "worse than the best": ([clip("oliver", noisy(13)), clip("amber")], "amber", ["oliver was left out. Its speech"]),
    "clipped": ([clip("oliver"), clip("amber", overdriven)], "oliver", ["amber was left out. The clip is overdriven"]),
    "a tone": ([clip("oliver", tone), clip("amber")], "amber", ["oliver was left out. The clip does not sound like"]),
    "too many words": (
        [clip("oliver", words="Far more than can be said. " * 20), clip("amber")],
        "amber",
        ["oliver was left out. The transcript is too long for 6.7 s of speech"],
    ),
    "too few words": (
        [clip("amber"), clip("oliver", words="No.")],
        "amber",
        ["oliver was left out. The transcript is too short for 6.7 s of speech"],
    ),
    "one has no transcript": (
        [clip("oliver", words=""), clip("amber")],
        "amber",
        ["oliver was left out. It has no transcript, but others have."],
    ),
    "none has a transcript": ([clip("oliver", words=""), clip("amber", words=" ")], "oliver, amber", []),
    "the only good one has no transcript": (
        [clip("oliver", words=""), clip("amber", overdriven)],
        "oliver",
        ["amber was left out. The clip is overdriven"],
    ),
    "more than 30 s": (
        [clip(name) for name in NAMES],
        "oliver, amber, henry, jack, ruth",
        ["clara was left out. Better parts fill the 30 s."],
    ),
    "the noisier ones do not fit": (
        [clip(NAMES[0], noisy(18.5)), *map(clip, NAMES[1:])],
        "amber, henry, clara, jack, ruth",
        ["oliver was left out. Better parts fill the 30 s."],
    ),
    "the quiet one does not fit": (
        [clip(NAMES[0], lambda wav: wav / 20), *map(clip, NAMES[1:])],
        "amber, henry, clara, jack, ruth",
        ["oliver was left out. Better parts fill the 30 s."],
    ),
    "none is good": (
        [clip("oliver", lambda wav: noisy(3)(overdriven(wav))), clip("amber", overdriven)],
        "amber",
        [
            "No clip is without fault, so only amber was used. The clip is overdriven",
            "oliver was left out. The clip is",
        ],
    ),
    "other rates and channels": (
        [clip("oliver", lambda wav: wav.repeat(2, 1), rate=44100), clip("amber", rate=16000), clip("henry")],
        "oliver, amber, henry",
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_best_clips_are_joined(name):
    clips, taken, told = CASES[name]
    joined = join_clips(clips, misfit)
    assert joined.taken == taken
    assert len(joined.doubts) == len(told) and all(map(str.startswith, joined.doubts, told)), joined.doubts
    of = [one for one in clips if one.name in taken.split(", ")]
    assert joined.transcript == " ".join(one.transcript.strip() for one in of).strip()
    seconds = sum(one.wav.shape[-1] / one.rate for one in of)
    assert seconds - len(of) < len(joined.wav) / SAMPLE_RATE <= min(30, seconds + 0.2 * len(of)), "the ends are trimmed"


@pytest.mark.parametrize("decibels", [-30, -7, 0, 5])
def test_all_parts_have_one_level(decibels):
    quiet = clip("oliver", lambda wav: wav * 10 ** (decibels / 20))
    joined = join_clips([quiet, clip("amber")], misfit)
    size = joined.wav.shape[-1]
    halves = joined.wav[: size // 2], joined.wav[-size // 3 :]
    assert all(abs(integrated_loudness(half) - LOUDNESS) < 1.5 for half in halves)


def test_the_rate_changes_nothing_that_is_heard():
    pairs = [join_clips([clip("oliver", rate=rate), clip("amber")], misfit).wav for rate in (SAMPLE_RATE, 48000)]
    size = min(map(len, pairs))
    one, other = (wav[:size] for wav in pairs)
    assert abs(len(pairs[0]) - len(pairs[1])) <= 480
    assert float((one * other).mean() / (one.square().mean() * other.square().mean()).sqrt()) > 0.99


@pytest.mark.parametrize("times", [3, 9])
def test_a_long_recording_without_a_transcript_is_cut_at_pauses(times):
    pause = torch.zeros(1, SAMPLE_RATE // 2)
    parts = [overdriven(clip("oliver").wav), *[clip("oliver").wav] * times]
    wav = torch.cat([part for one in parts for part in (one, pause)], 1)
    joined = join_clips([NamedClip(wav, SAMPLE_RATE, "", "long"), clip("amber", words="")], misfit)
    spans = [part for part in joined.taken.split(", ") if part.startswith("long (")]
    assert len(spans) >= 2 and not any("(0.0 to" in span for span in spans), "its first part is overdriven"
    assert 15 * SAMPLE_RATE < len(joined.wav) <= 30 * SAMPLE_RATE and not joined.transcript
    assert max(float(joined.wav[:240].abs().max()), float(joined.wav[-240:].abs().max())) < 0.05, "cut in pauses"


def test_a_recording_with_one_good_part_gives_that():
    pause = torch.zeros(1, SAMPLE_RATE // 2)
    parts = [overdriven(clip("oliver").wav), noisy(0)(clip("amber").wav), clip("oliver").wav]
    wav = torch.cat([part for one in parts for part in (one, pause)], 1)
    joined = join_clips([NamedClip(wav, SAMPLE_RATE, "", "long"), clip("amber", overdriven, words="")], misfit)
    assert joined.taken.startswith("long (1") and ", " not in joined.taken
    assert len(joined.doubts) == 1 and joined.doubts[0].startswith("amber was left out. The clip is overdriven")


BAD = {
    "empty": (torch.zeros(1, 0), "", "amber: The reference clip is empty"),
    "not a number": (torch.full((1, 48000), math.nan), "", "amber: The reference clip has 48000 samples that are not"),
    "silent": (torch.zeros(1, 48000), "", "amber: The reference clip is silent"),
    "short": (torch.ones(1, 12000), "", r"amber: The reference clip is 0\.50 s long, too short"),
    "long, with a transcript": (torch.ones(1, 31 * SAMPLE_RATE), "Hi.", r"amber: The reference clip is 31\.0 s long"),
    "very long": (torch.ones(1, 601 * SAMPLE_RATE), "", r"amber: The reference clip is 601\.0 s long"),
    "without pauses": (tone(torch.ones(1, 40 * SAMPLE_RATE)), "", "amber: no part of it can be cut out"),
    "three dimensions": (torch.zeros(1, 1, 48000), "", "amber: The reference clip has the shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_clip_that_cannot_become_a_voice_is_named(name):
    wav, words, told = BAD[name]
    with pytest.raises(HiggsError, match=f"^{told}"):
        join_clips([clip("oliver"), NamedClip(wav, SAMPLE_RATE, words, "amber")], misfit)
