"""When each word is heard: splitting, estimated times and JSON."""

import json
import re
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    SAMPLE_RATE,
    Engine,
    EngineConfig,
    HiggsError,
    SamplingParams,
    SpeechResult,
    SpokenTurn,
    Turn,
    Word,
    mark_words,
    to_srt,
    turn_to_srt,
    words_by_turn,
    words_json,
)
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.prompt.chunking import split_sentences, split_words
from higgs_tts.engine.speech.subtitles import cues_of
from higgs_tts.engine.speech.verdict import Doubt, Passage, Verdict
from higgs_tts.engine.words.cues import lines_of
from higgs_tts.engine.words.estimate import estimate
from higgs_tts.engine.words.word import read_words

RATE = SAMPLE_RATE


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as opened:
        yield opened


def chunk_of(text, seconds):
    """Return (wav, chunk): half a second of another chunk, then noise and, where negative, silence."""
    sizes = [round(abs(one) * SAMPLE_RATE) for one in (0.5, *seconds)]
    noise = torch.Generator().manual_seed(0)
    wavs = [0.1 * torch.randn(size, generator=noise) for size in sizes]
    wav = torch.cat([one * (heard > 0) for one, heard in zip(wavs, (0.5, *seconds), strict=True)])
    return wav, SpokenTurn("Ann", text, sizes[0], len(wav))


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("Mr. Smith's 3.14 — yes, ok...", ["Mr.", "Smith's", "3.14 —", "yes,", "ok..."]),
        ("— «Well», ...", ["— «Well», ..."]),
        ("安녕하세요", ["安", "녕하세요"]),
        ("안녕하세요, 세계!", ["안녕하세요,", "세계!"]),
        ("我用Python写2024年。", ["我", "用", "Python", "写", "2024", "年。"]),
        ("ちょっと、「食べ」た。", ["ちょっ", "と、", "「食", "べ」", "た。"]),
        ("สวัสดีครับ ชาวโลก", ["สวัสดีครับ", "ชาวโลก"]),
    ],
)
def test_words_keep_their_punctuation_and_a_character_is_one_where_no_spaces_are(sentence, words):
    assert split_words(sentence) == words


def test_words_are_shared_out_by_length_with_pauses_between_them():
    wav, chunk = chunk_of("One <|emotion:awe|>two, three. Four", [-0.3, 1.0, -0.2, 0.6, -0.5, 0.5, -0.3])
    words = estimate(wav, chunk)
    assert [word.text for word in words] == ["One", "two,", "three.", "Four"]
    assert {(word.speaker, word.method) for word in words} == {("Ann", "estimated")}
    expected = [(0.75, 1.13), (1.13, 1.8), (2.0, 2.6), (3.1, 3.65)]
    assert [(word.start, word.end) for word in words] == [pytest.approx(one, abs=0.06) for one in expected]


@pytest.mark.parametrize("text", ["", "<|sfx:laughter|>", "..."])
def test_a_chunk_without_words_has_none(text):
    assert estimate(*chunk_of(text, [1.0])) == []
    assert estimate(torch.empty(0), SpokenTurn("", "Nothing came.", 0, 0)) == []


def test_words_of_real_speech_lie_in_their_sentences(engine):
    turns = [Turn("Ann", "[pause 0.5] A first sentence, here. And <|prosody:pause|>more."), Turn("Bob", "Two.")]
    speech = engine.speak_turns(turns, params=SamplingParams(seed=3))
    words = [word for chunk in speech.said for word in estimate(speech.wav, chunk)]
    assert [word.speaker for word in words] == ["Ann"] * 6 + ["Bob"]
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and all(word.end > word.start for word in words)
    cues, at = cues_of(speech), 0
    for cue in cues:
        own = words[at : at + len(split_words(cue.text))]
        at += len(own)
        assert cue.start <= own[0].start and own[-1].end <= cue.stop
        assert " ".join(word.text for word in own) == cue.text
    assert at == len(words) and [cue.text for cue in cues][:1] == split_sentences("A first sentence, here.")


def speech_of(*chunks):
    """Return speech of (speaker, text), each a turn of a second of noise."""
    said = tuple(SpokenTurn(who, text, at * RATE, (at + 1) * RATE) for at, (who, text) in enumerate(chunks))
    wav = 0.1 * torch.randn(len(chunks) * RATE, generator=torch.Generator().manual_seed(0))
    return SpeechResult(wav, torch.empty(0, 8), 1.0, len(said), "end of speech", turns=said, said=said)


def words_of(speech):
    return [word for chunk in speech.said for word in estimate(speech.wav, chunk)]


def test_sentences_get_the_times_of_their_words():
    speech = speech_of(("Ann", "One two. Three."), ("Bob", "Four!"))
    words = [replace(word, start=at, end=at + 0.25) for at, word in enumerate(words_of(speech))]
    times = re.findall(r"(\S+) --> (\S+)\n(.*)", to_srt(speech, words))
    assert times == [
        ("00:00:00,000", "00:00:01,250", "Ann: One two."),
        ("00:00:02,000", "00:00:02,250", "Ann: Three."),
        ("00:00:03,000", "00:00:03,250", "Bob: Four!"),
    ]


def test_lines_end_with_sentences_turns_and_long_silences():
    speech = speech_of(("Ann", "So it is. And so it goes on"), ("Bob", "and on, Mr. Smith"))
    words = words_of(speech)
    assert [cue.text for cue in lines_of(words, 3)] == ["So it is.", "And so it", "goes on", "and on, Mr.", "Smith"]
    assert [cue.text for cue in lines_of(words, 1)] == [word.text for word in words]
    assert [(cue.start, cue.stop) for cue in lines_of(words, 1)] == [(word.start, word.end) for word in words]
    assert "Ann" not in to_srt(speech, words, 3)
    assert [cue.text for cue in lines_of([Word("One", 0, 1), Word("two", 1.5, 2), Word("three", 3, 4)], 9)] == [
        "One two",
        "three",
    ]


def test_lines_have_spaces_only_where_the_script_has_them():
    (line,) = lines_of(words_of(speech_of(("", "我用 Python 写2024年，yes — 안녕 세계。"))), 20)
    assert line.text == "我用Python写2024年，yes — 안녕 세계。"


def test_each_turn_has_its_own_words_from_its_start():
    speech = speech_of(("Ann", "One two."), ("Bob", "..."), ("Bob", "One two."))
    first, second, third = words_by_turn(speech, words_of(speech))
    assert [word.text for word in first] == ["One", "two."] and second == []
    assert [(word.start, word.end) for word in third] == [pytest.approx((word.start, word.end)) for word in first]
    assert turn_to_srt(speech, 2, third, 1).startswith("1\n00:00:00,000 --> ")
    assert re.findall(r"-->.*\n(\S+)\n", turn_to_srt(speech, 2, third, 1)) == ["One", "two."]


def test_what_is_missing_at_the_end_of_a_turn_is_doubted_there():
    speech = speech_of(("Ann", "One two."), ("Bob", "..."), ("Bob", "One two."))
    doubt = Doubt("missing", "two.", (1, 2), (25, 25))
    found = Verdict("attention", (0,), (Passage((0, 1), (0, 25), (doubt,)),))
    speech = replace(speech, said=(replace(speech.said[0], verdict=found), *speech.said[1:]))
    assert [(one.text, one.start) for one in speech.doubts] == [("two.", 1.0)]
    assert [[(one.text, one.start) for one in speech.of_turn(at).doubts] for at in range(3)] == [
        [("two.", 1.0)],
        [],
        [],
    ]
    assert len(speech.of_turn(2).wav) == RATE and speech.of_turn(2).said == (
        replace(speech.said[2], start=0, stop=RATE),
    )


def test_the_terminal_writes_words_and_lines(tmp_path, capsys):
    out, srt, words = (tmp_path / name for name in ("a.wav", "a.srt", "a.json"))
    command = ["say", "Hello there, you two.", "--out", str(out), "--device", "cpu"]
    assert main([*command, "--srt-out", str(srt), "--srt-words", "2", "--words", str(words)]) == 0
    rows = json.loads(words.read_text(encoding="utf-8"))["words"]
    assert [row["word"] for row in rows] == ["Hello", "there,", "you", "two."]
    assert re.findall(r"-->.*\n(.*)", srt.read_text(encoding="utf-8")) == ["Hello there,", "you two."]
    capsys.readouterr()
    assert main([*command, "--srt-words", "2"]) == 2 and "--srt-out" in capsys.readouterr().err
    assert main([*command, "--srt-out", str(srt), "--srt-words", "99"]) == 2
    assert "srt_words is 99" in capsys.readouterr().err
    assert main([*command, "--words", str(tmp_path / "a.txt")]) == 2 and ".json" in capsys.readouterr().err


def test_words_get_the_numbers_of_their_sentences_over_all_chunks():
    chunks = [SpokenTurn("", text, 0, stop) for text, stop in (("One. Two words.", 9), ("Three.", 0), ("Four.", 9))]
    words = mark_words([Word(text, 0, 0) for text in ("One.", "Two", "words.", "Four.")], chunks, 2)
    assert [word.sentence for word in words] == [2, 3, 3, 5]


def test_words_become_json_in_milliseconds():
    words = [Word("Ça,", 0.123456, 1.0, "Ann", "attention"), Word("va?", 1, 1.5)]
    assert "Ça" in words_json(words)
    assert json.loads(words_json(words)) == {
        "words": [
            {"word": "Ça,", "start": 0.123, "end": 1.0, "speaker": "Ann", "method": "attention"},
            {"word": "va?", "start": 1, "end": 1.5, "speaker": "", "method": "estimated"},
        ]
    }
    assert read_words(words_json(words)) == [replace(words[0], start=0.123), words[1]]
    assert json.loads(words_json([])) == {"words": []} and words_json(None) == ""


@pytest.mark.parametrize("end", ["1e308", "1e400", "NaN", "-1", "null", "1e8", "[]", '"a"'])
def test_words_whose_times_no_sound_has_are_refused(end):
    text = '{"words": [{"word": "a", "start": 0, "end": %s, "speaker": "", "method": ""}]}'
    assert [word.end for word in read_words(text % "1e6")] == [1e6]
    with pytest.raises(HiggsError, match="is not JSON of word times"):
        read_words(text % end)
