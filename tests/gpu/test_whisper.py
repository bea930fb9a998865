"""Word times by Whisper on the GPU: those of the CPU, and no memory kept."""

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, SamplingParams
from higgs_tts.engine.words.whisper import WhisperAligner
from higgs_tts.tests.whisper_files import write_whisper

pytest.importorskip("transformers")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_whisper_tells_the_same_times_and_gives_its_memory_back(folders, tmp_path, monkeypatch, dtype):
    whisper = write_whisper(tmp_path / "whisper", dtype)
    monkeypatch.setattr(Engine, "heads", lambda engine: ())
    config = EngineConfig(str(folders["v3"]), device="cuda:0", context=1024, whisper=str(whisper))
    with Engine(config) as engine:
        speech = engine.speak("Hello there, you two.", params=SamplingParams(max_frames=40, retries=0))
        engine.words(speech)  # CUDA's libraries stay
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        words = engine.words(speech)
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert {word.method for word in words} == {"whisper"}
    for ours, theirs in zip(words, WhisperAligner(whisper, torch.device("cpu")).align(speech), strict=True):
        assert ours.text == theirs.text
        if dtype == torch.float32:  # in fp16 a random Whisper's paths differ
            assert ours.start == pytest.approx(theirs.start, abs=0.05)
