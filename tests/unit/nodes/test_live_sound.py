"""A growing sound: its readers while it grows, restarts and ends, and its memory."""

from __future__ import annotations

import threading
import tracemalloc
import wave as wave_file

import numpy as np
import pytest
import torch
from higgs_tts.engine import SpokenTurn, Word
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict

RATE = 24_000


def wave(samples, seed=0):
    return torch.rand(samples, generator=torch.Generator().manual_seed(seed)) * 1.6 - 0.8


def as_sent(wav):
    return (wav.clamp(-1, 1) * 32767).round().to(torch.int16).numpy().tobytes()


@pytest.fixture
def live(load_module):
    return load_module("page.live_sound")


@pytest.fixture
def sound(live, tmp_path):
    """A LiveSound that can be awaited: `sound.settled()` returns once all pending writes are done."""
    made = live.LiveSound(tmp_path / "a.pcm", lambda: None)

    def settled():
        assert live.settle(60)
        return made.told(made.revision, 0)

    made.settled = settled
    yield made
    made.close()
    settled()


def outline_of(wav):
    """Return the peak of each 40 ms of the samples, in steps of 1/256."""
    samples = np.abs(np.frombuffer(as_sent(wav), "<i2").astype(int))
    return bytes(min(255, int(samples[at : at + 960].max()) >> 7) for at in range(0, len(samples), 960))


def test_sound_can_be_read_while_it_grows(sound):
    wav = wave(5000)
    for part in wav.split(777):
        sound.hear(part)
    told = sound.settled()
    assert (told["state"], told["samples"], told["revision"]) == ("speaking", 5000, 0)
    assert told["piece"] == 5000 % 777
    assert sound.read(0, 0, 9999) == as_sent(wav) and sound.read(0, 100, 200) == as_sent(wav[100:200])
    assert sound.read(0, 5000, 6000) == b"" and sound.read(0, 7000, 6000) == b"" and sound.read(1, 0, 10) is None
    assert bytes.fromhex(told["outline"]) == outline_of(wav)[:5], "frames that are whole"
    version = told["version"]
    sound.finish(wav)
    told = sound.settled()
    assert (told["state"], told["version"], told["revision"]) == ("complete", version + 1, 0), "nothing was replaced"
    assert bytes.fromhex(told["outline"]) == outline_of(wav)
    assert bytes.fromhex(sound.told(0, 4)["outline"]) == outline_of(wav)[4:] and sound.told(0, 4)["first"] == 4
    assert sound.told(3, 4)["first"] == 0, "a reader who knows another outline gets all of this one"


def test_a_restart_discards_earlier_sound_and_says_why(sound):
    sound.hear(wave(3000))
    sound.begin_anew("it fell silent")
    again = wave(2000, seed=1)
    sound.hear(again)
    told = sound.settled()
    assert told["restarts"] == ["it fell silent"] and told["revision"] == 1 and told["samples"] == 2000
    assert sound.read(0, 0, 100) is None and sound.read(1, 0, 2000) == as_sent(again)
    assert bytes.fromhex(told["outline"]) == outline_of(again)[:2]


def test_a_final_waveform_that_differs_replaces_the_heard_sound(sound):
    """A dialogue's turns are made equally loud when all is spoken."""
    wav = wave(4000)
    sound.hear(wav)
    sound.finish(wav * 0.5)
    told = sound.settled()
    assert told["state"] == "complete" and told["revision"] == 1 and told["restarts"] == []
    assert sound.read(1, 0, 4000) == as_sent(wav * 0.5)
    assert bytes.fromhex(told["outline"]) == outline_of(wav * 0.5)


def test_words_come_chunk_by_chunk_and_exact_times_replace_estimates(sound):
    first, second = wave(24000), wave(36000, seed=1)
    sound.spell(SpokenTurn("Anna", "Two words.", 0, 24000), first)
    told = sound.settled()
    assert [(row["word"], row["speaker"]) for row in told["words"]] == [("Two", "Anna"), ("words.", "Anna")]
    assert 0 <= told["words"][0]["start"] < told["words"][1]["start"] < told["words"][1]["end"] <= 1
    sound.spell(SpokenTurn("Tom", "One", 30000, 66000), second)
    sound.settled()
    told = sound.told(0, 0, 0, 2)
    (row,) = told["words"]
    assert told["known"] == 2 and row["word"] == "One" and 1.25 <= row["start"] < row["end"] <= 2.75
    assert row["method"] == "estimated"
    exact = [Word("Two", 0.1, 0.2, "Anna", "attention"), Word("words.", 0.2, 0.9, "Anna", "attention")]
    sound.finish(torch.cat([first, torch.zeros(6000), second]), exact)
    sound.settled()
    told = sound.told(1, 0, 0, 3)
    assert told["known"] == 0 and told["edition"] == 1 and [row["start"] for row in told["words"]] == [0.1, 0.2]
    assert sound.told(1, 0, 1, 2)["words"] == []


def test_words_come_with_their_sentences_and_doubts(sound):
    doubt = Doubt("again", "Three words", (1, 3), (0, 9))
    verdict = Verdict("attention", (0, 9), (Passage((1, 2), (9, 18), (doubt,)),))
    for text, found in (("One. Three words here.", verdict), ("Two. Five.", None)):
        sound.spell(SpokenTurn("", text, 0, 24000, verdict=found), wave(24000))
    rows = sound.settled()["words"]
    assert [row["sentence"] for row in rows] == [1, 2, 2, 2, 3, 4]
    assert [row.get("doubt") for row in rows] == [None, "again", "again", None, None, None]
    sound.finish(wave(48000), [Word("One.", 0, 1), Word("Three", 1, 2, doubt="cut", sentence=1)])
    rows = sound.settled()["words"]
    assert [(row["sentence"], row.get("doubt")) for row in rows] == [(1, None), (2, "cut")]


def test_a_restart_discards_the_words(sound):
    sound.spell(SpokenTurn("", "Two words.", 0, 3000), wave(3000))
    sound.begin_anew("it fell silent")
    told = sound.settled()
    assert told["words"] == [] and told["edition"] == 1


def test_nothing_is_added_after_the_end_and_closed_sound_is_empty(sound, tmp_path):
    sound.hear(wave(1000))
    sound.stop()
    sound.hear(wave(1000))
    sound.finish(wave(1000))
    told = sound.settled()
    assert told["state"] == "stopped" and told["samples"] == 1000 and len(told["outline"]) == 4
    sound.close()
    sound.settled()
    assert sound.read(0, 0, 10) is None and not list(tmp_path.iterdir())


def test_readers_are_woken_and_the_speaker_never_waits(live, tmp_path):
    """A reader that blocks does not hold up the speaker."""
    changes, gate = [], threading.Event()

    def changed():
        changes.append(threading.current_thread())
        gate.wait(20)

    sound = live.LiveSound(tmp_path / "slow.pcm", changed)
    for _ in range(50):
        sound.hear(wave(960))
        sound.step(1, 2)
    sound.finish(wave(960))
    assert len(changes) <= 1 and sound.told(0, 0)["samples"] <= 960
    gate.set()
    assert live.settle(60) and len(changes) == 51 and threading.current_thread() not in changes
    sound.close()


def test_the_pace_follows_the_steps(sound, live, monkeypatch):
    clock = iter([10.0, 10.02, 10.04, 10.06])
    monkeypatch.setattr(live.time, "monotonic", lambda: next(clock))
    assert sound.told(0, 0)["pace"] == 0
    for done in range(4):
        sound.step(done, 100)
    told = sound.told(0, 0)
    assert told["pace"] == told["speed"] == pytest.approx(2.0) and told["expected"] == 4.0
    assert told["done"] == 3 / 25 and told["left"] == pytest.approx(0.06 * 97 / 3, abs=0.05)


def test_speech_in_batches_is_faster_than_each_chunk(sound, live, monkeypatch):
    """Four chunks at a time, each at half of real time."""
    clock = iter([10.0, 10.08, 10.16])
    monkeypatch.setattr(live.time, "monotonic", lambda: next(clock))
    for done in (0, 4, 8):
        sound.step(done, 100)
    told = sound.told(0, 0)
    assert told["pace"] == pytest.approx(0.5) and told["speed"] == pytest.approx(2.0)


def test_the_status_says_how_long_nothing_new_was_heard(sound):
    """Chunks after the first are played once they are complete: the player shows that it waits."""
    for done in range(26):
        sound.step(done, 1000)
    assert sound.told(0, 0)["waited"] == 1
    sound.hear(wave(960))
    assert sound.told(0, 0)["waited"] == 0
    for done in range(150):
        sound.step(26 + 8 * done, 1000)
    assert sound.told(0, 0)["waited"] == 6


def test_readers_get_progress_once_a_second(live, tmp_path, monkeypatch):
    changes, clock = [], iter([10.0, 10.5, 11.1, 11.2, 12.05, 12.2])
    monkeypatch.setattr(live.time, "monotonic", lambda: next(clock))
    sound = live.LiveSound(tmp_path / "a.pcm", lambda: changes.append(sound.version))
    for done in range(6):
        sound.step(done, 100)
    assert live.settle(60) and changes == [1, 2], "in the third and the sixth step"
    sound.close()


def test_a_full_disk_ends_the_live_sound_and_not_the_speech(live, sound, monkeypatch):
    sound.hear(wave(960))
    sound.settled()

    def full(data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live, "pcm_bytes", full)
    sound.hear(wave(960))
    told = sound.settled()
    assert told["state"] == "stopped" and sound.read(0, 0, 960) == as_sent(wave(960))
    assert sound.problems() == (told["problem"],) and "No space left on device" in told["problem"]


def test_ten_minutes_of_sound_take_little_memory(sound):
    part = wave(RATE)
    sound.hear(part)
    sound.settled()
    tracemalloc.start()
    for second in range(600):
        sound.hear(part)
        if second % 20 == 0:
            sound.settled()
    told = sound.settled()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told["samples"] == 601 * RATE and peak < 4 << 20


def test_a_result_can_be_downloaded_once_it_is_there(sound, tmp_path):
    wav, stereo = wave(4000), torch.stack([wave(6000), wave(6000, seed=1)])
    sound.hear(wav)
    assert sound.settled()["file"] == "" and sound.file is None
    sound.finish(wav, (), (stereo, 48000))
    assert sound.settled()["file"] == "speech.wav" and sound.size == 8000 + 44 + 24000
    with wave_file.open(str(sound.file[0])) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 48000, 6000)
        assert file.readframes(6000) == as_sent(stereo.t())
    sound.close()
    sound.settled()
    assert list(tmp_path.iterdir()) == []


def test_a_saved_file_is_the_download_and_stays(sound, tmp_path):
    saved = tmp_path / "a_00001_.flac"
    saved.write_bytes(b"fLaC")
    sound.finish(wave(100), (), saved)
    assert sound.settled()["file"] == saved.name and sound.file[0] == saved
    sound.close()
    sound.settled()
    assert list(tmp_path.iterdir()) == [saved]
