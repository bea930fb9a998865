"""When each word is heard: splitting, estimated times and JSON."""

import json

import pytest
import torch
from higgs_tts.engine import (
    EMBEDDED,
    SAMPLE_RATE,
    Engine,
    EngineConfig,
    SamplingParams,
    SpokenTurn,
    Turn,
    Word,
    words_json,
)
from higgs_tts.engine.prompt.chunking import split_sentences, split_words
from higgs_tts.engine.speech.subtitles import cues_of
from higgs_tts.engine.words.estimate import estimate


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
    words = engine.words(speech)
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


def test_words_become_json_in_milliseconds():
    words = [Word("Ça,", 0.123456, 1.0, "Ann", "attention"), Word("va?", 1, 1.5)]
    assert "Ça" in words_json(words)
    assert json.loads(words_json(words)) == {
        "words": [
            {"word": "Ça,", "start": 0.123, "end": 1.0, "speaker": "Ann", "method": "attention"},
            {"word": "va?", "start": 1, "end": 1.5, "speaker": "", "method": "estimated"},
        ]
    }
    assert json.loads(words_json([])) == {"words": []}
