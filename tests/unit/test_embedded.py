"""The checkpoint that comes with the pack: whole, small, and it speaks and ends by itself."""

import json

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, SamplingParams
from higgs_tts.engine.checkpoint import open_codec
from higgs_tts.engine.codec import build_decoder
from higgs_tts.engine.doctor import examine
from higgs_tts.engine.tags import TAGS

TEXT = "It is 7:45 in Paris."


def test_the_folder_is_whole_and_small():
    files = [path for path in EMBEDDED.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 40_000_000
    assert max(path.stat().st_size for path in files) < 16_000_000
    assert len(list(EMBEDDED.glob("model-*-of-*.safetensors"))) > 1  # sharded, so that this way of reading is in use
    assert not examine(EMBEDDED).problems
    added = {token["content"] for token in json.loads((EMBEDDED / "tokenizer.json").read_text("utf-8"))["added_tokens"]}
    assert added >= {"<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>", "<|ref_text|>", *TAGS}


def say(runner: str):
    with Engine(EngineConfig(model=str(EMBEDDED), device="cpu", runner=runner, context=512)) as engine:
        return engine.speak(TEXT, params=SamplingParams(seed=1, max_frames=200)), engine


@pytest.fixture(scope="module")
def spoken():
    return say("eager")[0]


def test_it_ends_by_itself_and_is_no_silence(spoken):
    assert spoken.stopped == "end of speech"
    assert 1.0 < spoken.seconds < 4.0  # the voice it learned from takes 2
    loud = spoken.wav.unfold(0, 2400, 2400).square().mean(1).sqrt() > 0.01
    assert loud.float().mean() > 0.5
    assert spoken.wav.abs().max() <= 1.0


def test_traced_says_the_same_codes(spoken):
    assert torch.equal(say("traced")[0].codes, spoken.codes)


def test_the_streamed_sound_is_the_whole_decode(spoken):
    whole = build_decoder(open_codec(EMBEDDED).weights, "cpu")(spoken.codes.t()[None])[0]
    assert torch.allclose(spoken.wav, whole.clamp(-1, 1), atol=1e-5)
