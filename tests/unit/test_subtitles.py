"""Subtitles: one cue per sentence, at the time it is heard."""

import re
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    SAMPLE_RATE,
    Engine,
    EngineConfig,
    SamplingParams,
    SpeechResult,
    SpokenTurn,
    Turn,
    to_srt,
    turn_to_srt,
)
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.prompt.chunking import split_sentences
from higgs_tts.engine.speech.subtitles import cues_of

SENTENCES = [
    "The first one is short.",
    "The second sentence, as it happens, goes on for a while longer.",
    "Then a third.",
    "And the fourth one, at last, ends it all.",
]


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        yield opened


def speech_of(chunks):
    """Return a synthetic speech: chunks of (text, speaker, seconds of noise or, negative, of silence)."""
    wavs, said, at = [], [], 0
    for text, speaker, parts in chunks:
        noise = torch.Generator().manual_seed(len(said))
        sizes = [round(abs(seconds) * SAMPLE_RATE) for seconds in parts]
        loud = [0.1 * torch.randn(size, generator=noise) for size in sizes]
        wav = torch.cat([torch.empty(0), *(one * (seconds > 0) for one, seconds in zip(loud, parts, strict=True))])
        said.append(SpokenTurn(speaker, text, at, at + len(wav)))
        wavs.append(wav)
        at += len(wav)
    return SpeechResult(torch.cat(wavs), torch.empty(0, 8), 1.0, len(said), "end of speech", said=tuple(said))


def test_sentences_end_at_pauses_between_them_and_not_at_commas():
    text = " ".join(SENTENCES)
    parts = [-0.1, 1.5, -0.3, 1.4, -0.12, 1.1, -0.15, 1.7, -0.35, 0.9, -0.3, 1.0, -0.1, 0.8, -0.1, 0.7, -0.2]
    cues = cues_of(speech_of([(text, "", parts)]))
    assert [cue.text for cue in cues] == SENTENCES
    for cue, start, stop in zip(cues, [0.1, 1.9, 6.72, 7.92], [1.6, 6.37, 7.62, 10.62], strict=True):
        assert (cue.start, cue.stop) == pytest.approx((start, stop), abs=0.07)


def test_a_chunk_of_one_sentence_is_exact_and_speakers_are_named():
    speech = speech_of([("Hello.", "Ann", [-0.5, 1, -0.25]), ("<|emotion:awe|>Oh!", "Bob", [0.5])])
    assert to_srt(speech) == (
        "1\n00:00:00,450 --> 00:00:01,550\nAnn: Hello.\n\n2\n00:00:01,750 --> 00:00:02,250\nBob: Oh!\n"
    )
    assert "Ann" not in to_srt(speech_of([("Hello.", "Ann", [1])]))


def test_a_turn_has_its_own_subtitles():
    speech = speech_of([("Hello.", "Ann", [-0.5, 1]), ("Oh!", "Bob", [0.5]), ("Yes.", "Bob", [0.75])])
    first, second, third = speech.said
    speech = replace(speech, turns=(first, replace(second, text="Oh! Yes.", stop=third.stop)))
    assert turn_to_srt(speech, 0) == "1\n00:00:00,450 --> 00:00:01,500\nHello.\n"
    assert turn_to_srt(speech, 1) == (
        "1\n00:00:00,000 --> 00:00:00,500\nOh!\n\n2\n00:00:00,500 --> 00:00:01,250\nYes.\n"
    )


def test_speech_without_pauses_is_shared_out_by_length():
    cues = cues_of(speech_of([("One two three. One two three.", "", [4])]))
    assert cues[0].stop == cues[1].start == pytest.approx(2, abs=0.05)
    assert not cues_of(speech_of([("Nothing came.", "", [])]))


def test_tags_and_punctuation_are_no_sentences():
    assert split_sentences("<|emotion:awe|>Oh! ... Well, <|prosody:pause|>yes. — ") == ["Oh!", "... Well, yes. —"]


def test_cues_of_real_speech_are_in_order_and_inside_it(engine):
    text = "[pause 0.5] " + " ".join(SENTENCES) + "\n\nA new paragraph begins. It ends here."
    speech = engine.speak(text, params=SamplingParams(seed=3, chunk_seconds=8, paragraph_gap=0.5))
    cues = cues_of(speech)
    assert [cue.text for cue in cues] == [*SENTENCES, "A new paragraph begins.", "It ends here."]
    times = [time for cue in cues for time in (cue.start, cue.stop)]
    assert times == sorted(times) and times[0] >= 0.5 and times[-1] <= speech.seconds
    assert all(cue.stop - cue.start > 0.4 for cue in cues)
    assert len(re.findall(r"\d\d:\d\d:\d\d,\d{3} --> ", to_srt(speech))) == 6
    scene = engine.speak_turns([Turn("Ann", "One apple."), Turn("Bob", "Two."), Turn("Ann", "Three.")])
    assert [cue.speaker for cue in cues_of(scene)] == ["Ann", "Bob", "Ann"]
    for cue, turn in zip(cues_of(scene), scene.turns, strict=True):
        assert turn.start - 1 < cue.start * SAMPLE_RATE < cue.stop * SAMPLE_RATE < turn.stop + 1


def test_the_terminal_writes_subtitles(tmp_path, capsys):
    out, srt = tmp_path / "a.wav", tmp_path / "a.srt"
    assert main(["say", "Hello there.", "--out", str(out), "--srt-out", str(srt), "--device", "cpu"]) == 0
    assert srt.read_text(encoding="utf-8").startswith("1\n00:00:00,") and "Hello there." in srt.read_text(
        encoding="utf-8"
    )
    assert main(["say", "Hello.", "--out", str(out), "--srt-out", str(tmp_path / "a.txt")]) == 2
    assert ".srt" in capsys.readouterr().err
