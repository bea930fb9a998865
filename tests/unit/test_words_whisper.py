"""Word times by a tiny random Whisper, made here: forced alignment, what it cannot read, and its memory."""

import json
import logging
import shutil

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.core.config import SAMPLE_RATE
from higgs_tts.engine.engines.speech_api import SpeechAPI
from higgs_tts.engine.speech.result import SpeechResult, SpokenTurn
from higgs_tts.engine.words import whisper as whisper_module
from higgs_tts.engine.words.whisper import Reader, WhisperAligner
from higgs_tts.tests.whisper_files import write_whisper

pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("models") / "whisper")


def speech_of(text, seconds):
    wav = 0.3 * torch.sin(torch.arange(round(seconds * SAMPLE_RATE)) * 0.05)
    said = SpokenTurn("Ann", text, 0, len(wav), (0, round(25 * seconds)))
    return SpeechResult(wav, torch.empty(0, 8), 1.0, 1, "", said=(said,))


@pytest.mark.parametrize("multilingual", [True, False])
def test_a_speech_gets_the_times_of_its_words(whisper, tmp_path, multilingual):
    if not multilingual:
        whisper = shutil.copytree(whisper, tmp_path / "english")
        path = whisper / "generation_config.json"
        told = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**told, "lang_to_id": None, "is_multilingual": False}), encoding="utf-8")
    words = WhisperAligner(whisper, CPU).align(speech_of("<|emotion:elation|>Hello there, see.", 3.0))
    assert [word.text for word in words] == ["Hello", "there,", "see."]
    assert {(word.method, word.speaker) for word in words} == {("whisper", "Ann")}
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= 3.0 + 1e-6


def test_words_start_where_their_tokens_are_attended_to(whisper, monkeypatch):
    """Tokens are letters. Each is predicted at the position before it, and attended to 0.1 s before it is heard."""
    heard = torch.tensor([10, 20, 30, 60, 70, 120])  # positions of 20 ms of a b c, d e, and the end

    def attention(reader, ids, hidden):
        maps = torch.full((2, len(ids), 1500), 1e-3)
        for row, (start, stop) in enumerate(zip(heard, [*heard[1:], 150], strict=True)):
            maps[:, len(ids) - 7 + row, start - 5 : stop - 5] = 1.0
        return maps

    monkeypatch.setattr(Reader, "attention", attention)
    monkeypatch.setattr(Reader, "tokens", lambda reader, text: [[0, 1, 2], [3, 4]])
    _, second = WhisperAligner(whisper, CPU).align(speech_of("abc de", 3.0))
    assert second.start == pytest.approx(60 * 0.02, abs=0.03)


@pytest.mark.parametrize(
    ("text", "seconds"), [("Hello there.", 30.5), ("word " * 120, 25.0), ("One, two, three.", 0.1)]
)
def test_what_whisper_cannot_read_is_estimated(whisper, text, seconds):
    speech = speech_of(text, seconds)
    words = WhisperAligner(whisper, CPU).align(speech)
    assert words == SpeechAPI.words(None, speech) and {word.method for word in words} == {"estimated"}


def test_an_engine_without_aligning_heads_asks_whisper(whisper, written, monkeypatch):
    loads, load = [], whisper_module.load_whisper
    monkeypatch.setattr(whisper_module, "load_whisper", lambda *given: loads.append(given) or load(*given))
    monkeypatch.setattr(Engine, "heads", lambda engine: ())
    params = SamplingParams(max_frames=30)
    with Engine(EngineConfig(str(written["v3"]), device="cpu", whisper=str(whisper))) as engine:
        speech = engine.speak("Hello there.", params=params)
        assert [word.method for word in engine.words(speech)] == ["whisper"] * 2
        assert engine.words(speech) == engine.words(speech) and len(loads) == 1
        engine.close()
        assert {word.method for word in engine.words(speech)} == {"estimated"}  # nothing is loaded for a closed engine
        engine.open()
        engine.words(speech)
    assert len(loads) == 2


def test_a_damaged_whisper_is_logged_and_words_are_estimated(whisper, written, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Engine, "heads", lambda engine: ())
    with pytest.raises(HiggsError, match="no Whisper"):
        Engine(EngineConfig(str(written["v3"]), device="cpu", whisper=str(tmp_path)))
    broken = shutil.copytree(whisper, tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    with Engine(EngineConfig(str(written["v3"]), device="cpu", whisper=str(broken))) as engine:
        speech = engine.speak("Hello there.", params=SamplingParams(max_frames=30))
        with caplog.at_level(logging.WARNING, "higgs_tts"):
            words = engine.words(speech)
    assert {word.method for word in words} == {"estimated"} and "Download it again" in caplog.text
