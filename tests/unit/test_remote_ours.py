"""Our own server as a node uses it: the same speech as from the engine behind it."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, HiggsError, Listener, RemoteEngine, SamplingParams, ServerConfig
from higgs_tts.engine.engines import engine as engine_module

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.prompt.card import ModelCard
from higgs_tts.tests.speech_servers import running

TEXT = " ".join(f"The sentence with the number {word} is here." for word in "one two three four five".split())
PARAMS = SamplingParams(seed=(1 << 63) + 5, max_frames=25, chunk_seconds=3, retries=0, temperature=0.9, top_k=0)
SECOND = 24_000


@pytest.fixture(scope="module")
def engine(written):
    with Engine(EngineConfig(str(written["v3"]), device="cpu", context=512)) as engine:
        yield engine


@pytest.fixture(scope="module")
def local(written):
    """A second engine, for its own speech."""
    with Engine(EngineConfig(str(written["v3"]), device="cpu", context=512)) as engine:
        yield engine


@pytest.fixture(scope="module")
def served(engine):
    card = ModelCard(languages=("en",), tags=("<|prosody:pause|>",), one_voice=True)
    with running(engine, key="secret", card=card) as (port, speaker):
        yield port, speaker


@pytest.fixture
def remote(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    return RemoteEngine(ServerConfig(f"127.0.0.1:{served[0]}"))


def clip():
    """Two seconds at a WAV file's bit depth, so that both encoders get the same samples."""
    wav = torch.rand(2 * SECOND, generator=torch.Generator().manual_seed(1)) - 0.5
    return (wav * 32767).round() / 32768


def test_a_long_text_equals_the_engine_s_speech_chunk_by_chunk(remote, local):
    """With a voice. Seeds, indices and the voice are equal, so the 16-bit samples are too."""
    theirs = remote.speak(TEXT, remote.encode_voice(clip(), SECOND, "What it says."), PARAMS)
    ours = local.speak(TEXT, local.encode_voice(clip(), SECOND, "What it says."), PARAMS)
    assert theirs.chunks == ours.chunks == 5 and len(theirs.wav) == len(ours.wav)
    assert (theirs.wav - ours.wav).abs().max() < 1e-4
    assert theirs.stopped == ours.stopped and theirs.how == f"{remote.found.servers[0].label} (5 chunks)"


@pytest.mark.parametrize("listener", [None, Listener(on_audio=lambda wav: None)], ids=["whole", "streamed"])
@pytest.mark.parametrize("frames", [8, 25])
def test_without_a_voice_all_chunks_equal_the_engine_s(remote, local, frames, listener):
    """The first chunk comes back as the clip of the others, and the server knows its codes."""
    params = dataclasses.replace(PARAMS, max_frames=frames)
    theirs, ours = remote.speak(TEXT, params=params, listener=listener), local.speak(TEXT, params=params)
    assert theirs.chunks == ours.chunks == 5 and len(theirs.wav) == len(ours.wav)
    assert (theirs.wav - ours.wav).abs().max() < 1e-4


def test_two_addresses_share_the_work(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    port = served[0]
    several = RemoteEngine(ServerConfig(f"127.0.0.1:{port}\nlocalhost:{port}", calls=2))
    one = RemoteEngine(ServerConfig(f"127.0.0.1:{port}", calls=2))
    voice = one.encode_voice(clip(), SECOND)
    assert several.speak(TEXT, voice, PARAMS).wav.equal(one.speak(TEXT, voice, PARAMS).wav)


def test_the_server_s_model_card_is_used(remote):
    assert remote.planner.card == ModelCard(("en",), ("<|prosody:pause|>",), True)
    assert remote.planner.knows_tag("<|prosody:pause|>") and not remote.planner.knows_tag("<|emotion:awe|>")
    speech = remote.speak("Look <|emotion:awe|>at that.", params=PARAMS)
    assert any("has not learned <|emotion:awe|>" in warning for warning in speech.warnings)


def test_the_server_s_key_is_required(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "wrong")
    with pytest.raises(HiggsError, match="refused the key: the key is missing or wrong") as refused:
        RemoteEngine(ServerConfig(f"127.0.0.1:{served[0]}")).speak("Hello.")
    assert "secret" not in str(refused.value)


def test_a_voice_of_the_server_is_used_by_name(served, monkeypatch):
    monkeypatch.setenv("HIGGS_TTS_API_KEY", "secret")
    address = f"127.0.0.1:{served[0]}"
    by_name = RemoteEngine(ServerConfig(address, voice="Amber")).speak("Hello there.", params=PARAMS)
    assert not by_name.wav.equal(RemoteEngine(ServerConfig(address)).speak("Hello there.", params=PARAMS).wav)
    with pytest.raises(HiggsError, match=r"has no voice 'nobody'\. Choose one of: default, amber"):
        RemoteEngine(ServerConfig(address, voice="nobody")).speak("Hello there.")


def test_cancel_frees_the_server_s_rows(remote, served):
    class Stop(BaseException):
        pass

    def stop(done, expected):
        if served[1].speaking:
            raise Stop

    with pytest.raises(Stop):
        remote.speak(TEXT, params=SamplingParams(seed=3, max_frames=400, retries=0), listener=Listener(on_frame=stop))
    deadline = time.monotonic() + 60
    while served[1].speaking:
        assert time.monotonic() < deadline, "the server speaks on"
        time.sleep(0.01)
    for thread in threading.enumerate():
        if thread.name.startswith("Higgs TTS 127.0.0.1"):
            thread.join(30)
            assert not thread.is_alive()


def test_a_clip_is_encoded_once_for_all_chunks(remote, monkeypatch):
    made, encode = [], engine_module.encode_once
    monkeypatch.setattr(engine_module, "encode_once", lambda *given: made.append(1) or encode(*given))
    voice = remote.encode_voice(clip() * 0.5, SECOND, "Something else.")
    remote.speak(TEXT, voice, PARAMS)  # five calls at a time
    remote.speak("Hello there.", voice, PARAMS)
    assert len(made) == 1


def test_another_engine_s_voice_is_refused_with_the_remedy(remote, local):
    voice = local.encode_voice(clip(), SECOND)
    with pytest.raises(HiggsError, match="Make the voice again from its clip, with Higgs TTS Server"):
        remote.speak("Hello.", voice)
