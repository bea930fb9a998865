"""The check by what Whisper writes down: which differences are doubts, and where."""

from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, Listener, SamplingParams
from higgs_tts.engine.words.whisper import Reader, WhisperAligner
from higgs_tts.engine.words.whisper_check import WhisperCheck, judge_written
from higgs_tts.tests.whisper_files import write_whisper

TEXT = "The old lighthouse keeper winked at her. Then he went up the stairs. Nobody saw him again."
EDGES = [10 * number for number in range(18)]  # 17 words of 10 frames
SAID = {
    "all": TEXT,
    "signs and case": TEXT.lower().replace(".", ","),
    "another spelling": TEXT.replace("lighthouse", "light house").replace("winked", "winged"),
}


@pytest.mark.parametrize("written", SAID.values(), ids=SAID)
def test_what_was_heard_otherwise_is_no_doubt(written):
    verdict = judge_written(TEXT, written, EDGES)
    assert verdict.method == "whisper" and not verdict.doubts and verdict.starts == (0, 70, 130)


@pytest.mark.parametrize(
    ("written", "kind", "words", "passages"),
    [
        (TEXT.replace("lighthouse keeper ", ""), "missing", (2, 4), [(0, 1)]),
        (TEXT.replace("Then he went up the stairs. ", ""), "missing", (7, 13), [(1, 2)]),
        (TEXT.replace("up the", "up the up the"), "again", (10, 12), [(1, 2)]),
        (TEXT.replace("winked at her", "winked at her, keeper winked at her"), "again", (3, 7), [(0, 1)]),
        (TEXT.replace("stairs.", "stairs of a green house."), "added", (12, 13), [(1, 2)]),
        (TEXT.removesuffix(" Nobody saw him again."), "missing", (13, 17), [(2, 3)]),
    ],
)
def test_words_not_said_once_are_doubts(written, kind, words, passages):
    verdict = judge_written(TEXT, written, EDGES)
    ((doubt, *more),) = [verdict.doubts]
    assert (doubt.kind, doubt.words, more) == (kind, words, [])
    assert [passage.sentences for passage in verdict.passages] == passages
    assert doubt.frames == (EDGES[words[0]], EDGES[words[1]])


def test_words_after_a_limit_are_not_missed():
    assert not judge_written(TEXT, TEXT.removesuffix(" Nobody saw him again."), EDGES, ended=False).doubts


def test_what_somebody_heard_is_named_and_stays():
    verdict = judge_written(TEXT, TEXT.replace("lighthouse keeper ", ""), EDGES, was_heard=True)
    assert verdict.fixed == EDGES[-1] and not verdict.passages and [one.kind for one in verdict.heard] == ["missing"]


@pytest.mark.parametrize(
    "written", ["", "Thank you.", "Thanks for watching this video about the sea and all its ships."]
)
def test_a_chunk_that_whisper_does_not_understand_is_not_judged(written):
    assert judge_written(TEXT, written, EDGES) is None


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("models") / "whisper")


@pytest.mark.parametrize("listens", [False, True])
def test_an_engine_without_aligning_heads_is_checked_by_whisper(whisper, written, monkeypatch, listens):
    monkeypatch.setattr(Reader, "written", lambda reader, wav: "There it is.")
    config = EngineConfig(str(written["v3"]), device="cpu", whisper=str(whisper))
    listener = Listener(on_audio=lambda wav: None) if listens else Listener()
    params = SamplingParams(max_frames=30, retries=0)
    text = "Wonderful Petersburg, there it is."
    with Engine(config) as engine:
        (chunk,) = engine.speak(text, params=params, listener=listener).said
        assert chunk.verdict.method == "whisper" and chunk.verdict.fixed == (30 if listens else 0)
        assert [doubt.text for doubt in chunk.verdict.doubts] == ["Wonderful Petersburg,"]
        (chunk,) = engine.speak(text, params=replace(params, check=False)).said
        assert chunk.verdict is None


def test_whisper_writes_down_what_it_hears(whisper, written):
    """Tiny random weights write nothing of use."""
    aligner = WhisperAligner(whisper, torch.device("cpu"))
    check, wav = WhisperCheck(aligner, "Hello there."), 0.3 * torch.sin(torch.arange(28_800) * 0.05)
    check.receive(wav)
    text, starts = aligner.transcribe("Hello there.", wav)
    assert isinstance(text, str) and len(starts) == 2
    assert check.verdict(torch.zeros((30, 8), dtype=torch.int64)) is None
    assert aligner.transcribe("Hello there.", torch.zeros(24_000 * 31)) is None, "Whisper reads 30 s"
