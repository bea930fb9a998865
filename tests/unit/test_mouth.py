"""Mouth shapes from word times: which, when, per frame, and as JSON."""

import json
import random

import pytest
from higgs_tts.engine import OPENNESS, HiggsError, Word, mouth_of, read_words
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.words import phonemes

LETTERS, SYLLABLES = "letters", "syllables"


@pytest.fixture(autouse=True)
def without_espeak(monkeypatch):
    """As if the phonemizer package were not installed."""
    monkeypatch.setattr(phonemes, "installed_version", lambda library: "")


def shapes_of(text, seconds=1.0):
    """Return the shapes of a text's words, each a second long, without pauses."""
    words = [Word(word, at * seconds, (at + 1) * seconds) for at, word in enumerate(text.split())]
    mouth = mouth_of(words, len(words) * seconds)
    return "".join(cue.shape for cue in mouth.cues), mouth.method


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("Mum", "ACA"),
        ("bob,", "AEA"),
        ("feed", "GB"),
        ("“Vow!”", "GEF"),
        ("low", "HEF"),
        ("night", "BDB"),
        ("time", "BDBA"),
        ("my", "ADB"),
        ("well-made", "FCHACB"),
        ("WHO'S", "FEB"),
        ("Die Mühle und das schöne Öl", "BAFHCFBDBEBCEH"),  # German: every letter is spoken
        ("Она говорит по-русски", "EBDBEGEBAEBFB"),
        ("καλή μέρα", "BDHBACBD"),
        ("パン や ほん", "ADBDEB"),
        ("안녕 바다", "DBEBADBD"),
    ],
)
def test_letters_have_known_shapes(text, shapes):
    assert shapes_of(text) == (shapes, LETTERS)


@pytest.mark.parametrize(("text", "syllables"), [("你 好", 2), ("10", 2), ("שלום", 2), ("你 好 10", 4)])
def test_what_is_not_read_opens_and_closes_the_mouth_by_syllables(text, syllables):
    assert shapes_of(text) == ("BC" * syllables, SYLLABLES)


def test_english_beside_another_script_is_read_as_english_and_both_methods_are_named():
    assert shapes_of("My 你 に") == ("ADBCB", "letters and syllables")


def test_vowels_last_longer_than_consonants():
    first, vowel, last = mouth_of([Word("bob", 0.5, 1.5)], 1.5).cues[1:]
    assert vowel.end - vowel.start == pytest.approx(2 * (first.end - first.start))
    assert last.end - last.start == pytest.approx(first.end - first.start) and (first.start, last.end) == (0.5, 1.5)


@pytest.mark.parametrize(("pause", "between"), [(0.0, ""), (0.04, ""), (0.1, "A"), (0.3, "A"), (0.4, "X"), (2.0, "X")])
def test_the_mouth_closes_in_short_pauses_and_rests_in_long_ones(pause, between):
    mouth = mouth_of([Word("so", 0.2, 0.6), Word("see", 0.6 + pause, 1.0 + pause)], 1.5 + pause)
    assert "".join(cue.shape for cue in mouth.cues) == f"XBE{between}BX"
    if between:
        (closed,) = mouth.cues[3:-2]
        assert (closed.start, closed.end) == pytest.approx((0.6, 0.6 + pause))


def check_whole(mouth, seconds):
    """Check that the cues follow each other without gaps, from the beginning to the end."""
    assert mouth.cues[0].start == 0 and mouth.cues[-1].end == seconds
    for before, after in zip(mouth.cues, mouth.cues[1:], strict=False):
        assert before.start < before.end == after.start and before.shape != after.shape
    assert {cue.shape for cue in mouth.cues} <= OPENNESS.keys()


@pytest.mark.parametrize("seed", range(20))
def test_cues_cover_the_sound_in_order_wherever_the_words_are(seed):
    """Words overlap where two speak, and reach past the end of a sound that was cut."""
    rng = random.Random(seed)
    starts = [rng.uniform(0, 5) for _ in range(30)]
    words = [Word(rng.choice(("Mum", "vow", "10", "h", "—3")), at, at + rng.uniform(0, 1)) for at in starts]
    check_whole(mouth_of(words, 4.321), 4.321)


def test_a_sound_without_words_is_at_rest():
    mouth = mouth_of([], 0.5)
    assert [(cue.start, cue.end, cue.shape) for cue in mouth.cues] == [(0, 0.5, "X")] and mouth.method == ""
    assert mouth.frames(4) == ["X", "X"]


@pytest.mark.parametrize(
    ("seconds", "fps", "count"),
    [
        (0.04, 25, 1),
        (1.0, 24, 24),
        (1.0, 29.97, 30),
        (0.28, 25, 7),
        (8.3, 30, 249),
        (2.5, 12.5, 32),
        (2.001, 1, 3),
        (7.003, 60, 421),
    ],
)
def test_there_is_a_shape_for_every_frame_that_the_sound_reaches(seconds, fps, count):
    assert len(mouth_of([Word("Mum", 0.2, 0.9)], seconds).frames(fps)) == count


def test_a_frame_has_the_shape_in_its_middle():
    frames = mouth_of([Word("bob", 0.4, 0.8)], 1.0).frames(10)
    assert "".join(frames) == "XXXXAEEAXX"


def test_json_reads_like_that_of_rhubarb():
    assert json.loads(mouth_of([Word("oh", 0.1, 0.53346)], 1.00049).to_json()) == {
        "metadata": {"soundFile": "", "duration": 1.0, "method": "letters"},
        "mouthCues": [
            {"start": 0.0, "end": 0.1, "value": "X"},
            {"start": 0.1, "end": 0.533, "value": "E"},
            {"start": 0.533, "end": 1.0, "value": "X"},
        ],
    }


def test_openness_grows_from_closed_lips_to_a_wide_mouth():
    assert [*OPENNESS] == [*"ABCDEFGHX"] and OPENNESS["A"] == OPENNESS["X"] == 0 and OPENNESS["D"] == 1
    assert OPENNESS["G"] < OPENNESS["B"] < OPENNESS["F"] < OPENNESS["E"] < OPENNESS["C"] < OPENNESS["H"] < 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"words": 3}',
        '{"words": [{"word": "a"}]}',
        '{"words": [{"word": "a", "start": NaN, "end": 1, "speaker": "", "method": ""}]}',
        '{"words": [{"word": "a", "start": 2, "end": 1, "speaker": "", "method": ""}]}',
        '{"words": [{"word": "a", "start": 0, "end": 1e999, "speaker": "", "method": ""}]}',
        "[" * 100_000,
    ],
)
def test_other_text_than_words_is_refused(text):
    with pytest.raises(HiggsError, match=r"is not JSON of word times\. Connect the words output"):
        read_words(text)


def test_the_terminal_writes_mouth_shapes(tmp_path):
    sound, words, mouth = (tmp_path / name for name in ("a.wav", "a.json", "mouth.json"))
    command = ["say", "Mum, come home.", "--out", str(sound), "--device", "cpu"]
    assert main([*command, "--words", str(words), "--mouth", str(mouth)]) == 0
    told = json.loads(mouth.read_text(encoding="utf-8"))
    seconds = (sound.stat().st_size - 44) / 2 / 24000
    assert told["metadata"]["duration"] == pytest.approx(seconds, abs=1e-3) == told["mouthCues"][-1]["end"]
    assert told == json.loads(mouth_of(read_words(words.read_text(encoding="utf-8")), seconds).to_json())
    assert {"A", "C", "X"} <= {cue["value"] for cue in told["mouthCues"]}
