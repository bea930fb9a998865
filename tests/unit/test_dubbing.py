"""Cues on time: their placement, fitting, voices, and the sound below."""

import itertools
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    SAMPLE_RATE,
    CueParams,
    Engine,
    EngineConfig,
    HiggsError,
    Listener,
    SamplingParams,
    SpeechResult,
    SpokenTurn,
    Turn,
    Voice,
    cue_lines,
    cue_summary,
    cut_references,
    mix_speech,
    read_cues,
    speak_cues,
)
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.audio.tempo import with_tempo
from higgs_tts.engine.dubbing import speak
from higgs_tts.engine.dubbing.report import fit_counts
from higgs_tts.engine.dubbing.timeline import Timeline
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.prompt.chunking import estimate_seconds
from higgs_tts.engine.prompt.cues import Cue, CueTurns, write_srt
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict
from higgs_tts.engine.tools.film import read_film
from higgs_tts.engine.words.estimate import estimate

ALL = CueParams(run_on=0)
PLAIN = CueParams(faster=False, stretch=1, run_on=0)


def cue(start, stop, *speakers, number=1, text="Hello."):
    return CueTurns(number, start, stop, text, tuple(Turn(name, text) for name in speakers or ("",)))


def places(cues, seconds, fit):
    timeline = Timeline(cues, fit)
    return [(round(place.start, 3), round(place.tempo, 3)) for place in map(timeline.place, seconds)]


@pytest.mark.parametrize(
    ("cues", "seconds", "fit", "expected"),
    [
        ([(0, 2), (3, 4)], [1.5, 1], ALL, [(0, 1), (3, 1)]),
        ([(0, 2), (3, 4)], [2.2, 1], ALL, [(0, 1.1), (3, 1)]),
        ([(0, 2), (3, 4)], [2.2, 1], CueParams(run_on=0.5), [(0, 1), (3, 1)]),
        ([(0, 2), (2, 4)], [2.2, 1], CueParams(run_on=0.5), [(0, 1.1), (2, 1)]),
        ([(0, 2), (2, 4), (4, 6)], [4, 1.6, 1], ALL, [(0, 1.25), (3.2, 1.25), (4.48, 1)]),
        ([(0, 2), (2, 4), (4, 6)], [4, 1.6, 1], PLAIN, [(0, 1), (4, 1), (5.6, 1)]),
        ([(0, 2), (2, 4)], [4, 1.6], CueParams(stretch=1.5, shift=False, run_on=0), [(0, 1.5), (2, 1)]),
        # Two who speak at once in the file do so here; nobody speaks over themselves.
        ([(0, 3, "A"), (1, 2, "B"), (3, 4, "A")], [3.5, 1, 1], PLAIN, [(0, 1), (1, 1), (3.5, 1)]),
        ([(0, 3, "A"), (1, 2, "A")], [3, 1], PLAIN, [(0, 1), (3, 1)]),
        ([(0, 3, "A"), (1, 2, "A")], [1.2, 1], ALL, [(0, 1.2), (1, 1)]),
        ([(0, 2.05, "A"), (2, 3, "B")], [2.5, 1], PLAIN, [(0, 1), (2.5, 1)]),
        ([(0, 1), (0, 1)], [1, 1], ALL, [(0, 1), (1, 1.25)]),  # a cue of two parts, as some files have it
        ([(1, 1), (3, 3)], [0.5, 0.5], PLAIN, [(1, 1), (3, 1)]),
    ],
)
def test_speech_is_placed_at_its_cues(cues, seconds, fit, expected):
    assert places([cue(*one) for one in cues], seconds, fit) == expected


def test_thousands_of_cues_are_placed_in_order_and_never_too_fast():
    numbers = random.Random(0)
    starts = sorted(numbers.uniform(0, 6000) for _ in range(3000))
    cues = [cue(start, start + numbers.uniform(0, 4), numbers.choice("AB")) for start in starts]
    seconds = [numbers.uniform(0.2, 5) for _ in cues]
    found = places(cues, seconds, ALL)
    own = {"A": 0.0, "B": 0.0}
    for one, length, (start, tempo) in zip(cues, seconds, found, strict=True):
        (speaker,) = one.speakers
        assert 1 <= tempo <= 1.25 and start >= max(one.start, own[speaker]) - 0.002
        own[speaker] = start + length / tempo


@pytest.mark.parametrize("tempo", [1.0, 1.07, 1.25, 2.0])
def test_tempo_keeps_pitch_and_loudness(tempo):
    pytest.importorskip("av")
    wav = 0.3 * torch.sin(2 * torch.pi * 200 * torch.arange(3 * SAMPLE_RATE) / SAMPLE_RATE)
    faster = with_tempo(wav, tempo)
    assert len(faster) == round(len(wav) / tempo) and faster.abs().max() == pytest.approx(0.3, abs=0.01)
    crossings = int(((faster[:-1] < 0) & (faster[1:] >= 0)).sum())
    assert crossings == pytest.approx(200 * len(faster) / SAMPLE_RATE, rel=0.01)
    assert len(with_tempo(wav[:5], tempo)) == round(5 / tempo) and not len(with_tempo(wav[:0], tempo))


class Spoken:
    """An engine whose speech takes 0.1 s a word, 0.8 and 0.6 times as long with speed tags.

    loses(tag, words): True if their last word is lost, None if they cannot be checked. refers: every speaker gets a
    voice.
    """

    context = 2048

    def __init__(self, knows=True, slow=1.0, loses=lambda tag, words: False, refers=True):
        self.calls, self.voices, self.knows, self.slow, self.loses, self.refers = [], [], knows, slow, loses, refers
        self.planner = self

    def knows_tag(self, tag):
        return self.knows and "speed" in tag

    def words(self, speech):
        return [word for chunk in speech.said for word in estimate(speech.wav, chunk)]

    def speak_turns(self, turns, voices, params, scene=None, listener=None, reuse=True, even=True):
        self.calls.append([turn.text for turn in turns])
        self.voices.append(dict(voices))
        assert params.turn_gap == 0
        spans, at = [], 0
        for turn in turns:
            tag, _, words = turn.text.rpartition("|>")
            pace = self.slow * (0.6 if "very_fast" in tag else 0.8) if tag else 1.0
            size = round(pace * SAMPLE_RATE * len(words.split()) / 10)
            frames, verdict = (at // 960, (at + size) // 960), self._verdict(tag, words, size)
            spans.append(SpokenTurn(turn.speaker, turn.text, at, at + size, frames, verdict=verdict))
            at += size
        listener.on_frame(1, 2)
        made = {turn.speaker: Voice(torch.zeros(5, 8, dtype=torch.int64), None, turn.speaker) for turn in turns}
        return SpeechResult(
            torch.full((at,), 0.1),
            torch.zeros(at // 960, 8, dtype=torch.int64),
            0.5,
            len(turns),
            "end of speech",
            turns=tuple(spans),
            said=tuple(spans),
            voices=(made if self.refers else {}) | dict(voices),
        )

    def _verdict(self, tag, words, size):
        if (loses := self.loses(tag, words)) is None:
            return None
        if not loses:
            return Verdict("attention", (0,))
        last, end = len(words.split()) - 1, -(-size // 960)
        doubt = Doubt("missing", words.split()[-1], (last, last + 1), (end, end))
        return Verdict("attention", (0,), (Passage((0, 1), (0, end), (doubt,)),))


def words(count, start=0):
    return " ".join(f"w{number}" for number in range(start, start + count))


def test_long_speech_is_spoken_faster_then_stretched_then_shifted():
    pytest.importorskip("av")
    cues = [
        cue(0, 2, "Ann", number=1, text=words(15)),
        cue(2, 4, "Ann", number=2, text=words(24)),  # 2.4 s: fast makes 1.92
        cue(4, 6, "Bob", number=3, text=words(35)),  # 3.5 s: very fast makes 2.1, and the rest is stretched
        cue(6, 7, "Bob", number=4, text=words(30)),  # 3 s: 1.8 and 1.44
        CueTurns(5, 6.5, 6.9, "[door]", ()),
        cue(7, 9, "Ann", number=6, text=words(10)),
    ]
    engine, ticks = Spoken(), []
    speech = speak_cues(
        engine, cues, params=SamplingParams(turn_gap=1), fit=ALL, listener=Listener(lambda *of: ticks.append(of))
    )
    assert [[text.count("fast") for text in call] for call in engine.calls] == [[0] * 5, [1, 1, 1]]
    assert [text.split("|>")[0] for text in engine.calls[1]] == [
        "<|prosody:speed_fast",
        "<|prosody:speed_very_fast",
        "<|prosody:speed_very_fast",
    ]
    assert [(one.pace, round(one.tempo, 2), round(one.late, 2)) for one in speech.cues] == [
        ("", 1, 0),
        ("fast", 1, 0),
        ("very_fast", 1.05, 0),
        ("very_fast", 1.25, 0),
        ("", 1, 0),
        ("", 1, 0.44),
    ]
    assert [round(start, 2) for start, _ in speech.sounds] == [0, 2, 4, 6, 7.44]
    counts = fit_counts(speech)
    assert {name: round(count, 2) for name, count in counts.items()} == {
        "cues": 6, "silent": 1, "on_time": 1, "faster": 3, "stretched": 2, "shifted": 1, "over": 1,
        "worst_late": 0.44, "worst_over": 0.44,
    }  # fmt: skip
    told = cue_lines(speech)
    assert told[0] == "1  00:00:00,000  Ann: 1.50 s of speech for 2.00 s: unchanged" and told[4].endswith("no words")
    assert told[3].endswith("spoken very fast, stretched to 1.25 times the speed, ends 0.44 s late")
    assert cue_summary(speech) == (
        "6 cues: 1 on time without changes, 4 changed (3 spoken faster, 2 stretched, 1 starting up to "
        "0.44 s late, 1 ending up to 0.44 s late), 1 without words."
    )
    assert [(one.start, one.stop) for one in read_cues(speech.to_srt()).cues][3:] == [
        (6, 7.44),
        (6.5, 6.9),
        (7.44, 8.44),
    ]
    assert ticks == sorted(ticks) and speech.seconds == 9


def test_a_faster_take_that_loses_words_is_not_taken():
    cues = [cue(0, 2, "Ann", text=words(24)), cue(3, 5, "Bob", text=words(24))]
    for loses, paces in (
        (lambda tag, words: tag, ["", ""]),
        (lambda tag, words: not tag, ["fast", "fast"]),
        (lambda tag, words: True, ["fast", "fast"]),
        (lambda tag, words: None if tag else False, ["", ""]),
        (lambda tag, words: False if tag else None, ["fast", "fast"]),
    ):
        speech = speak_cues(Spoken(loses=loses), cues, fit=CueParams(stretch=1, run_on=0))
        assert [one.pace for one in speech.cues] == paces
        assert (speech.outcome == "Complete.") == (not loses(*([paces[0]] * 2))), "of what is heard"


def test_a_last_word_that_is_missing_is_doubted_in_its_own_cue():
    cues = [cue(0, 2, "Ann", text=words(4)), cue(5, 8, text=words(6)), cue(9, 10, "Bob", text=words(5, 20))]
    lost = "w3", "w24"
    speech = speak_cues(Spoken(loses=lambda tag, words: words.endswith(lost)), cues, fit=PLAIN)
    assert [(one.text, round(one.start, 2)) for one in speech.doubts] == [("w3", 0.4), ("w24", 9.5)]
    assert speech.outcome == "Spoken to the end; 2 places are doubtful."


def test_a_cue_of_which_the_model_says_nothing_is_doubted_once():
    silent = Spoken()
    speak_turns = silent.speak_turns

    def says_nothing(*args, **given):
        speech = speak_turns(*args, **given)
        said = [replace(one, flaws=("short",) if not one.is_spoken else (), verdict=None) for one in speech.said]
        return replace(speech, said=tuple(said))

    silent.speak_turns = says_nothing
    cues = [cue(0, 2, text=words(9)), cue(2, 4, text="..."), cue(4, 6, text=words(9))]
    cues[1] = replace(cues[1], turns=(Turn("", ""),))
    speech = speak_cues(silent, cues, fit=PLAIN)
    assert [(one.kind, one.start) for one in speech.doubts] == [("short", 2.0)] and len(speech.checked) == 3


def test_who_says_one_cue_of_a_group_has_the_same_voice_in_the_next(monkeypatch):
    monkeypatch.setattr(speak, "GROUP", 2)
    cues = [cue(at, at + 1, "Ann" if at % 3 else "Bob", text=words(40, at)) for at in range(6)]
    engine = Spoken(refers=False)
    speak_cues(engine, cues, fit=PLAIN)
    assert [[*voices] for voices in engine.voices] == [[], ["Bob", "Ann"], ["Bob", "Ann"]]
    assert engine.voices[2]["Bob"] is engine.voices[1]["Bob"] and engine.voices[1]["Bob"].transcript == words(40)
    assert [len(engine.voices[1][name].codes) for name in ("Bob", "Ann")] == [100, 100]


def test_words_are_where_the_fitted_speech_is():
    pytest.importorskip("av")
    cues = [cue(0, 1, "Ann", text="One two."), cue(2, 3, "Ann", text=words(30)), cue(4, 5, "Bob", text="It ends.")]
    speech = speak_cues(Spoken(knows=False), cues, fit=ALL, words=True)
    assert [round(tempo, 2) for tempo in (one.tempo for one in speech.cues)] == [1, 1.25, 1]
    for one, own in zip(speech.cues, speech.timed, strict=True):
        assert (own[0].start, own[-1].end) == (pytest.approx(one.start, abs=0.01), pytest.approx(one.stop, abs=0.01))
    assert [word.text for word in speech.words][:3] == ["One", "two.", "w0"] and len(speech.words) == 34
    lines = read_cues(speech.to_srt(20)).cues
    assert [line.text for line in lines] == ["One two.", words(20), words(10, 20), "It ends."]
    assert not speak_cues(Spoken(), cues, fit=ALL).words


def test_the_counts_of_a_summary_add_up():
    pytest.importorskip("av")
    cues = [cue(at, at + 1, text=words(30 if at == 3 else 5), number=at + 1) for at in range(4)]
    speech = speak_cues(Spoken(), cues, fit=ALL)
    assert cue_summary(speech).startswith("4 cues: 3 on time without changes, 1 changed (1 spoken faster, 1 str")
    assert cue_summary(speak_cues(Spoken(), cues[:1], fit=ALL)) == "1 cue: 1 on time without changes."


def test_each_way_of_fitting_is_used_only_if_allowed(monkeypatch):
    cues = [cue(0, 1, text=words(14)), cue(1, 2, text=words(5))]

    def outcome(engine, fit):
        speech = speak_cues(engine, cues, fit=fit)
        return [(one.pace, round(one.tempo, 2), round(one.start, 2)) for one in speech.cues], speech.warnings

    assert outcome(Spoken(), PLAIN) == ([("", 1, 0), ("", 1, 1.4)], ())
    assert outcome(Spoken(), CueParams(faster=False, stretch=1, shift=False, run_on=0))[0] == [("", 1, 0), ("", 1, 1)]
    assert outcome(Spoken(knows=False), CueParams(stretch=1, run_on=0))[0][0] == ("", 1, 0), "v2 has no tags"
    assert outcome(Spoken(slow=2), CueParams(stretch=1, run_on=0))[0][0] == ("", 1, 0), "the shorter take is kept"
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setitem(sys.modules, "av.filter", None)
    found, (warning,) = outcome(Spoken(), ALL)
    assert found[0] == ("very_fast", 1, 0)
    assert warning.startswith("Speech that is too long for its cue was not stretched: ") and "Install av" in warning


def test_a_cue_keeps_its_own_pace_and_joined_cues_share_one():
    sheet = read_cues(
        "1\n00:00:00,000 --> 00:00:01,000\n<|prosody:speed_slow|>One two three four five six seven eight nine ten."
        "\n\n2\n00:00:05,000 --> 00:00:06,000\nANN: One two.\nBOB: Three."
    )
    engine = Spoken()
    speech = speak_cues(engine, sheet.cues, fit=CueParams(stretch=1, run_on=0))
    assert len(engine.calls) == 1 and speech.cues[1].spoken == pytest.approx(0.2 + 0.15 + 0.1)
    assert cue_lines(speech)[1].startswith("2  00:00:05,000  ANN and BOB: ")


def test_a_cue_without_words_after_cleaning_is_silent():
    """Pronunciations may leave no words."""
    cues = [cue(0, 1, "Ann", number=1, text="One two."), cue(2, 3, "Ann", number=2, text="")]
    cues.append(CueTurns(3, 4, 6, "Three", (Turn("Ann", ""), Turn("Bob", "Three."))))
    speech = speak_cues(Spoken(), cues, fit=CueParams(stretch=1))
    assert [at for at, _ in speech.sounds] == [0, 4] and len(speech.sounds[1][1]) == SAMPLE_RATE // 10
    assert cue_lines(speech)[1] == "2  00:00:02,000  no words" and speech.cues[1].stop == 3


def test_two_thousand_cues_are_spoken_in_parts_with_the_same_voices():
    cues = [cue(at, at + 1, "AB"[at % 2], number=at + 1, text=words(9, at)) for at in range(2000)]
    engine = Spoken()
    speech = speak_cues(engine, cues, fit=ALL)
    assert len(speech.cues) == 2000 == len(speech.sounds) and 5 < len(engine.calls) < 20
    assert list(itertools.chain(*engine.calls)) == [one.text for one in cues]
    assert all(part.wav.numel() == 0 for part in speech.parts), "only the cues' sound is held"
    assert max(wav.untyped_storage().nbytes() for _, wav in speech.sounds) < 4 * SAMPLE_RATE


def test_a_cue_that_ends_after_hours_is_refused_before_anything_is_spoken():
    """Its mix would take 34 GB."""
    late = read_cues("1\n00:00:01,000 --> 00:00:02,000\nOne.\n\n2\n99:59:58,000 --> 99:59:59,000\nTwo.").cues
    with pytest.raises(HiggsError, match=r"cue 2 ends at 99:59:59,000.*up to 04:00:00,000\. Correct its times"):
        speak_cues(None, late)


def test_cues_without_words_are_refused():
    with pytest.raises(HiggsError, match="no cue contains anything to speak"):
        speak_cues(Spoken(), [CueTurns(1, 0, 1, "[door]", ())])


def tone(seconds, hertz, rate=48000):
    t = torch.arange(round(seconds * rate)) / rate
    return 0.3 * torch.sin(2 * torch.pi * hertz * t) * (torch.sin(2 * torch.pi * 3 * t) > 0)


class TestReferences:
    """From a film with two speakers, one of them with music below in places."""

    RATE = 48000
    SAID = "This sentence is as long as the time that it has, about."

    @pytest.fixture
    def film(self):
        film = torch.zeros(2, 60 * self.RATE)
        for at in range(10):
            film[:, at * 6 * self.RATE :][:, : 4 * self.RATE] = tone(4, 200 if at % 2 else 400)
        return film

    def cues(self):
        return [cue(at * 6, at * 6 + 4, "AB"[at % 2], number=at + 1, text=f"{at}. {self.SAID}") for at in range(10)]

    def test_each_speaker_s_reference_has_five_seconds(self, film):
        found = cut_references(self.cues(), film, self.RATE, ["A", "B"])
        for speaker, hertz, numbers in (("A", 400, (1, 3)), ("B", 200, (2, 4))):
            clip = found[speaker]
            assert clip.cues == numbers and 5 <= clip.seconds <= 15
            assert clip.transcript == " ".join(f"{number - 1}. {self.SAID}" for number in numbers)
            spectrum = torch.fft.rfft(clip.wav).abs()
            assert float(spectrum.argmax()) * SAMPLE_RATE / len(clip.wav) == pytest.approx(hertz, abs=8)
            assert clip.wav.isfinite().all()

    def test_clean_cues_are_preferred_for_references(self, film):
        film[:, : 17 * self.RATE] += 0.04  # something below everything
        film[0, 20 * self.RATE] = float("nan")
        film[:, 24 * self.RATE : 28 * self.RATE] *= 100
        film = film.clamp(-1, 1)
        assert cut_references(self.cues(), film, self.RATE, ["A"])["A"].cues == (7, 9)
        assert cut_references(self.cues(), film, self.RATE, ["B"])["B"].cues == (6, 8)

    def test_overlapping_short_and_mismatched_cues_are_no_references(self, film):
        cues = self.cues()[:5:2]
        crowd = cue(1, 2, "B", number=9)
        long = cue(12, 16, "A", number=3, text="Yes.")
        short = cue(24, 24.5, "A", number=5, text="Yes.")
        cues = sorted([cues[0], crowd, long, short], key=lambda one: one.start)
        assert cut_references(cues, film, self.RATE, ["A"]) == {}
        assert cut_references([*cues, cue(36, 38, "A", number=7, text=self.SAID)], film, self.RATE, ["A"])[
            "A"
        ].cues == (7,)
        assert cut_references(self.cues(), film[:, : 3 * self.RATE], self.RATE, ["B"]) == {}, "the film is shorter"

    def test_tags_are_left_out_of_the_transcript(self, film):
        cues = [cue(at * 12, at * 12 + 4, "A", text=f"[pause 1]<|emotion:awe|>{self.SAID}") for at in range(3)]
        assert cut_references(cues, film, self.RATE, ["A"])["A"].transcript == f"{self.SAID} {self.SAID}"


class TestMix:
    def test_speech_without_a_bed_has_the_requested_length(self):
        wav = mix_speech([(1.0, torch.full((SAMPLE_RATE,), 0.5)), (1.5, torch.full((SAMPLE_RATE,), 0.75))], 4.0)
        assert wav.shape == (1, 4 * SAMPLE_RATE) and wav.max() == 1.0, "what sounds at once stays in range"
        assert wav[0, SAMPLE_RATE - 1] == 0 == wav[0, round(2.5 * SAMPLE_RATE)] and wav[0, SAMPLE_RATE] == 0.5
        assert mix_speech([(3.0, torch.ones(2 * SAMPLE_RATE))], 1.0).shape[1] == 5 * SAMPLE_RATE

    def test_the_bed_is_lowered_during_speech(self):
        rate = 48000
        bed = torch.full((2, 20 * rate), 0.4)
        sounds = [(start, torch.zeros(2 * SAMPLE_RATE)) for start in (5.0, 8.0, 15.0)]
        kept = bed.clone()
        wav = mix_speech(sounds, 3.0, bed, rate, lower_bed=20.0)
        assert wav.shape == bed.shape and wav.is_contiguous() and torch.equal(bed, kept)
        at = [float(wav[1, round(second * rate)]) for second in (1, 4.7, 5, 7.5, 9.9, 10.6, 14, 16, 19)]
        assert at == pytest.approx([0.4, 0.4, 0.04, 0.04, 0.04, 0.4, 0.4, 0.04, 0.4], abs=1e-3)
        assert wav[0].diff().abs().max() < 1e-3, "without a step"
        assert torch.equal(mix_speech(sounds, 3.0, bed, rate, lower_bed=0.0), bed)

    def test_speech_over_a_bed_has_the_bed_s_rate_and_channels(self):
        speech = 0.2 * torch.sin(2 * torch.pi * 300 * torch.arange(SAMPLE_RATE) / SAMPLE_RATE)
        wav = mix_speech([(1.0, speech)], 2.0, torch.zeros(2, 44100), 44100)
        assert wav.shape == (2, 88200) and torch.equal(wav[0], wav[1])
        part = wav[0, 44100:]
        assert ((part[:-1] < 0) & (part[1:] >= 0)).sum() == pytest.approx(300, abs=2)


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        yield opened


LINES = [
    ("Ann", "The morning was cold and clear."),
    ("Bob", "Nobody had told the old man."),
    ("Ann", "He waited there for a while."),
    ("Bob", "It was long before he came."),
]


def subtitles(pace):
    """Return the lines as a file. pace: each one's time relative to its estimate."""
    found, at = [], 0.5
    for speaker, text in LINES:
        stop = at + pace * estimate_seconds(text)
        found.append(Cue(at, stop, text, speaker))
        at = stop + 0.1
    return write_srt(found)


def test_real_speech_is_made_to_fit(engine):
    pytest.importorskip("av")
    cues = read_cues(subtitles(0.6)).cues
    voices = {}
    speech = speak_cues(engine, cues, voices, SamplingParams(seed=1), CueParams(run_on=0.1))
    counts = fit_counts(speech)
    assert counts["faster"] >= 2 and voices == {}
    for before, after in itertools.pairwise(speech.cues):
        assert before.stop <= after.start + 1e-3
    for one, (start, wav) in zip(speech.cues, speech.sounds, strict=True):
        assert start == one.start and one.stop - one.start == pytest.approx(len(wav) / SAMPLE_RATE)
        assert wav.abs().max() > 0.05 and (one.stop - one.start <= one.slot + 1e-3 or one.tempo == 1.25)
    again = speak_cues(engine, cues, {}, SamplingParams(seed=1), CueParams(run_on=0.1))
    for (start, wav), (other, same) in zip(speech.sounds, again.sounds, strict=True):
        assert start == other and torch.equal(wav, same), "the same, from its codes"
    assert sum(part.reused for part in again.parts) == sum(part.chunks for part in again.parts)


def test_the_terminal_speaks_a_file_over_its_film(engine, tmp_path, capsys):
    soundfile = pytest.importorskip("soundfile")
    film = mix_speech(speak_cues(engine, read_cues(subtitles(1.5)).cues).sounds, 15.0)
    soundfile.write(tmp_path / "film.wav", film.T.numpy(), SAMPLE_RATE)
    (tmp_path / "film.srt").write_bytes(subtitles(1.5).encode("utf-16"))
    out, srt = tmp_path / "dub.wav", tmp_path / "dub.srt"
    command = ["say", "--device", "cpu", "--srt-in", str(tmp_path / "film.srt"), "--out", str(out)]
    sound = ["--film", str(tmp_path / "film.wav"), "--bed", str(tmp_path / "film.wav"), "--lower-bed", "30"]
    assert main([*command, *sound, "--srt-out", str(srt)]) == 0
    told = capsys.readouterr().out
    assert "4 cues: " in told and "Bob: " in told and str(out) in told
    wav, rate = soundfile.read(out)
    assert (rate, len(wav)) == (SAMPLE_RATE, 15 * SAMPLE_RATE) and abs(wav).max() > 0.05
    assert [one.turns[0].speaker for one in read_cues(srt.read_text(encoding="utf-8")).cues] == [
        who for who, _ in LINES
    ]
    soundfile.write(tmp_path / "silent.wav", 0 * film[0, : 8 * SAMPLE_RATE].numpy(), SAMPLE_RATE)
    (tmp_path / "film.srt").write_text("1\n0:01 --> 0:02\nAnn: One.\n\n2\n0:03 --> 0:04\nBob: Two.\n", encoding="utf-8")
    assert main([*command, "--film", str(tmp_path / "silent.wav")]) == 0
    assert "warning: the film has no clear second of Bob" in capsys.readouterr().err
    wav, _ = soundfile.read(out)
    assert len(wav) >= 8 * SAMPLE_RATE, "as long as the film"
    assert main([*command, "--script", "a.txt"]) == 2 and "only one of them" in capsys.readouterr().err
    assert main([*command, "--codes", str(tmp_path / "a.npy")]) == 2
    missing = ["say", "--device", "cpu", "--srt-in", str(tmp_path / "no.srt"), "--out", str(out)]
    assert main(missing) == 2 and "no.srt cannot be read" in capsys.readouterr().err


def write_film(path, wav, rate, container, codec):
    """Write, by PyAV, a film of one second with sound wav [C, n] int16, or without sound for None."""
    av = pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    with av.open(str(path), "w", format=container) as file:
        picture = file.add_stream("mpeg4", rate=1)
        picture.width = picture.height = 16
        sound = None if wav is None else file.add_stream(codec, rate=rate, layout="stereo")
        file.mux(picture.encode(av.VideoFrame(16, 16, "yuv420p")))
        if sound:
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wav.T.reshape(1, -1)), "s16", "stereo")
            frame.sample_rate = rate
            file.mux([*sound.encode(frame), *sound.encode(None)])
        file.mux(picture.encode(None))


class TestFilmFiles:
    WAV = (9000 * np.sin(np.arange(2)[:, None] + np.arange(44_100) * [[0.05], [0.02]])).astype(np.int16)

    def test_the_sound_of_a_film_is_read_unchanged(self, tmp_path):
        write_film(tmp_path / "film.mkv", self.WAV, 44_100, "matroska", "pcm_s16le")
        wav, rate = read_film(str(tmp_path / "film.mkv"))
        assert rate == 44_100 and wav.dtype == np.float32 and np.array_equal(wav, self.WAV / np.float32(32768))

    @pytest.mark.parametrize(("suffix", "container"), [("mp4", "mp4"), ("m4a", "ipod"), ("mov", "mov")])
    def test_compressed_sound_is_read(self, tmp_path, suffix, container):
        write_film(tmp_path / f"film.{suffix}", self.WAV, 44_100, container, "aac")
        wav, rate = read_film(str(tmp_path / f"film.{suffix}"))
        assert rate == 44_100 and len(wav) == 2 and wav.shape[1] == pytest.approx(44_100, abs=2100)
        assert wav.std(1) == pytest.approx(self.WAV.std(1) / 32768, rel=0.1)

    def test_a_wav_file_is_read_as_soundfile_does_despite_a_wrong_header(self, tmp_path):
        soundfile = pytest.importorskip("soundfile")
        soundfile.write(tmp_path / "film.wav", self.WAV.T, 44_100)
        data = bytearray((tmp_path / "film.wav").read_bytes())
        data[4:8] = data[40:44] = (0x7FFFFF00).to_bytes(4, "little")
        (tmp_path / "lies.wav").write_bytes(data)
        for name in ("film.wav", "lies.wav"):
            wav, rate = read_film(str(tmp_path / name))
            assert rate == 44_100 and np.array_equal(wav, self.WAV / np.float32(32768))

    def test_files_without_sound_are_refused(self, tmp_path, capsys, monkeypatch):
        write_film(tmp_path / "silent.mp4", None, 0, "mp4", "")
        (tmp_path / "text.mp4").write_text("This is not a film.", encoding="utf-8")
        (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,000\nHello.\n", encoding="utf-8")
        monkeypatch.setattr(Engine, "open", None)
        for name, says in (("silent.mp4", "has no sound"), ("text.mp4", "cannot be read"), ("no.mp4", "There is no")):
            for option in ("--film", "--bed"):
                command = ["say", "--srt-in", str(tmp_path / "a.srt"), "--out", str(tmp_path / "a.wav")]
                assert main([*command, option, str(tmp_path / name)]) == 2
                assert name in (err := capsys.readouterr().err) and says in err and err.count("\n") == 1


def test_an_engine_knows_the_tags_of_its_checkpoint(engine):
    assert engine.planner.knows_tag("<|prosody:speed_fast|>") and not engine.planner.knows_tag("<|emotion:awe|>")
    assert not engine.planner.knows_tag("<|prosody:speed_sideways|>")
    assert PromptBuilder(engine.checkpoint.tokenizer, engine.checkpoint.config).follows("<|emotion:awe|>")
