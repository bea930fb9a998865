"""Pauses of a set length: their spelling, splits at them, and exact silence in the sound."""

from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, HiggsError, Listener, SamplingParams
from higgs_tts.engine.audio.assembly import FADE
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.prompt.chunking import split_script
from higgs_tts.engine.prompt.script import MAX_PAUSE, PAUSE, read_pauses

PARAMS = SamplingParams(seed=3, max_frames=100, check=False)


@pytest.mark.parametrize(
    ("marker", "seconds"),
    [
        ("[pause]", PAUSE),
        ("[Pause]", PAUSE),
        ("[ pause ]", PAUSE),
        ("[pause 1.5]", 1.5),
        ("[pause 1,5]", 1.5),
        ("[pause .25]", 0.25),
        ("[pause:2s]", 2.0),
        ("[PAUSE : 2 sec]", 2.0),
        ("[pause:500ms]", 0.5),
        ("[pause=3]", 3.0),
        ("[pause 0]", 0.0),
    ],
)
def test_a_marker_is_removed_and_gives_its_length(marker, seconds):
    script = read_pauses(f"One {marker} two.")
    chunks, silences = split_script(script, 30)
    assert "pause" not in script.text.lower() and not script.warnings
    assert (chunks, silences) == ((["One", "two."], [0.0, seconds, 0.0]) if seconds else (["One   two."], [0.0, 0.0]))


@pytest.mark.parametrize(
    ("marker", "part"),
    [
        ("[pause long]", "has no valid length"),
        ("[pause -1]", "has no valid length"),
        ("[pause 90 s]", "the longest pause"),
    ],
)
def test_a_senseless_marker_is_left_out_with_a_warning(marker, part):
    script = read_pauses(f"One {marker} two.")
    (warning,) = script.warnings
    assert marker in warning and part in warning and marker not in script.text
    assert [pause.seconds for pause in script.pauses] == ([MAX_PAUSE] if "90" in marker else [])


@pytest.mark.parametrize(("marker", "seconds"), [("[pause:1500]", 1.5), ("[pause 90]", 0.09)])
def test_a_large_number_is_read_as_milliseconds_with_a_warning(marker, seconds):
    script = read_pauses(f"One {marker} two.")
    assert [pause.seconds for pause in script.pauses] == [seconds]
    (warning,) = script.warnings
    assert warning.startswith(f'"{marker}" was read as {seconds:g} seconds: ') and "milliseconds" in warning


@pytest.mark.parametrize("inside", [" 1" + " " * 500_000 + "x", ":" * 500_000, " " + "9" * 500_000, " ,1" * 200_000])
def test_long_markers_are_read_quickly_and_quoted_in_part(inside):
    """All ways to divide spaces were tried, which took hours."""
    (warning,) = read_pauses(f"One [pause{inside}] two.").warnings or ("",)
    assert len(warning) < 200


@pytest.mark.parametrize("text", ["[pauses] and [paused]", "pause 2", "[unpause]", "(pause)", "<|prosody:pause|> Hm."])
def test_text_that_is_no_marker_stays(text):
    assert read_pauses(text).text == text and not read_pauses(text).pauses


@pytest.mark.parametrize(
    ("text", "chunks", "silences"),
    [
        ("[pause 1] A. [pause 2]", ["A."], [1, 2]),
        ("A. [pause 1][pause 2] B.", ["A.", "B."], [0, 3, 0]),
        ("A. [pause 1] ... [pause 2] B.", ["A.   ...", "B."], [0, 3, 0]),  # nothing to speak between them
        ("A.\n\nB.\n \n\nC.", ["A.", "B.", "C."], [0, 0.5, 0.5, 0]),
        ("\n\nA.\n\n", ["A."], [0, 0]),
        ("A. [pause 2]\n\nB.", ["A.", "B."], [0, 2, 0]),  # what is written counts, not the gap
        ("<|emotion:awe|>A b [pause 1] c.", ["<|emotion:awe|>A b", "<|emotion:awe|>c."], [0, 1, 0]),
        ("<|emotion:awe|>A b.\n\nC d.", ["<|emotion:awe|>A b.", "C d."], [0, 0.5, 0]),
        ("A <|sfx:laughter|> [pause 1] <|emotion:awe|> b.", ["A <|sfx:laughter|>", "<|emotion:awe|> b."], [0, 1, 0]),
        ("你好[pause 1]世界", ["你好", "世界"], [0, 1, 0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk_seconds", [0, 30])
def test_the_text_is_cut_at_pauses_that_stand_between_words(text, chunks, silences, chunk_seconds):
    assert split_script(read_pauses(text, 0.5), chunk_seconds) == (chunks, silences)


def test_long_text_is_cut_at_sentences_too():
    text = " ".join(["This is a sentence of some length, as sentences go."] * 6)
    chunks, silences = split_script(read_pauses(f"{text} [pause 1] {text}"), 8)
    assert len(chunks) > 2 and silences.count(1.0) == 1 and silences.count(0.0) == len(chunks)
    assert silences.index(1.0) == len(chunks) / 2
    assert " ".join(chunks) == f"{text} {text}"


def test_without_a_marker_nothing_changes():
    text = "One paragraph.\n\nAnother one, which goes on."
    assert split_script(read_pauses(text), 30) == ([text], [0.0, 0.0])


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(EMBEDDED, device="cpu")) as opened:
        yield opened


def zeros(wav):
    """Return (start, length) of every run of exact zeros of 0.1 s or more."""
    silent = torch.cat([torch.zeros(1), (wav == 0).float(), torch.zeros(1)]).diff()
    starts, ends = (silent == 1).nonzero().flatten(), (silent == -1).nonzero().flatten()
    return [(int(a), int(b - a)) for a, b in zip(starts, ends, strict=True) if b - a >= SAMPLE_RATE // 10]


def test_a_pause_is_exact_silence(engine):
    text = "[pause 0.5] One apple is here. [pause 1.25] Two apples.\n\nThree. [pause: 300 ms]"
    heard = []
    params = SamplingParams(seed=3, max_frames=100, paragraph_gap=0.7)
    speech = engine.speak(text, params=params)
    assert speech.chunks == 3 and speech.complete and not speech.warnings
    runs = zeros(speech.wav)
    assert [length for _, length in runs] == [12_000, 30_000, 16_800, 7_200]
    assert runs[0][0] == 0 and sum(runs[-1]) == len(speech.wav)
    spoken = len(speech.wav) - sum(length for _, length in runs)
    assert 0.5 * 960 * speech.frames < spoken <= 960 * speech.frames, "what was silent beside the pauses is gone"
    assert speech.seconds == len(speech.wav) / SAMPLE_RATE
    chunks = []
    listener = Listener(
        on_audio=lambda wav: heard.append(wav.clone()),
        on_chunk=lambda *chunk: chunks.append((*chunk, sum(map(len, heard)))),
    )
    listened = engine.speak(text, params=params, listener=listener)
    assert (torch.cat(heard) - speech.wav).abs().max() < 1e-3 and len(torch.cat(heard)) == len(speech.wav)
    assert tuple(said for said, _, _ in chunks) == listened.said
    silent, heard_of = ([replace(said, verdict=None) for said in one.said] for one in (speech, listened))
    assert silent == heard_of and [one.verdict.doubts for one in (*speech.said, *listened.said)] == [()] * 6
    for said, wav, length in chunks:
        assert torch.equal(wav, listened.wav[said.start : said.stop]) and length >= said.stop, "it was heard before"


def test_speech_before_a_pause_does_not_depend_on_it(engine):
    """Except for its edge: silence there is cut, and the rest fades out."""
    alone = engine.speak("One apple is here.", params=PARAMS).wav
    for text in ("One apple is here. [pause 2]", "One apple is here. [pause 2] Two apples are there."):
        paused = engine.speak(text, params=PARAMS).wav
        (start, length), *_ = zeros(paused)
        assert length == 2 * SAMPLE_RATE and 0.5 * len(alone) < start <= len(alone)
        assert torch.equal(paused[: start - FADE], alone[: start - FADE])
        assert start == len(alone) or alone[start:].abs().max() < 0.02


def test_a_short_beginning_is_not_the_only_voice_reference(engine, monkeypatch):
    """If a pause cuts the first words off, more of the text is spoken before it serves as the others' voice."""
    voices = []
    build = PromptBuilder.build

    def listening(self, chunk, voice, *args, **kwargs):
        voices.append((chunk, voice.transcript if voice else None))
        return build(self, chunk, voice, *args, **kwargs)

    monkeypatch.setattr(PromptBuilder, "build", listening)
    engine.speak(
        "Hello. [pause 1] My name is Anna. [pause 1] I have twelve green apples. [pause 1] Bye.", params=PARAMS
    )
    assert [voice for _, voice in voices[:3]] == [None, "Hello.", "Hello. My name is Anna."]


def test_a_text_of_pauses_alone_is_refused(engine):
    with pytest.raises(HiggsError, match="nothing to speak"):
        engine.speak("[pause 1] [pause 2]", params=PARAMS)
