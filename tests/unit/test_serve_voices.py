"""A server's voices as clients list and name them, clips of other forms, and AAC."""

import base64
import io
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from higgs_tts.engine import (
    BUILT_IN_CLIPS,
    EMBEDDED,
    Engine,
    EngineConfig,
    HiggsError,
    RemoteEngine,
    ServerConfig,
    Voice,
)

pytest.importorskip("aiohttp.web", reason="aiohttp is not installed")

from higgs_tts.engine.serve.calls import STOCK_VOICES, BadCall
from higgs_tts.engine.serve.voices import VoiceFolder
from higgs_tts.tests.speech_servers import ask, error_of, running

SHORT = {"voice": "alloy", "input": "One apple.", "seed": 3, "max_new_tokens": 24, "retries": 0, "check": False}
BUILT_IN = sorted(path.stem for path in BUILT_IN_CLIPS.glob("*.flac"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("voices")


@pytest.fixture(scope="module")
def port(written, folder):
    with (
        Engine(EngineConfig(str(written["v3"]), device="cpu", context=1024)) as engine,
        running(engine, folder) as (port, _),
    ):
        yield port


def listed(port):
    return json.loads(ask(port, "GET", "/v1/audio/voices")[2])


def test_open_webui_lists_the_voices(port):
    data = listed(port)
    voices_list = data.get("voices", [])  # these two lines are Open WebUI's
    available_voices = {voice["id"]: voice["name"] for voice in voices_list}
    assert available_voices == {name: name for name in ("default", *BUILT_IN)}


def test_clients_of_sglang_and_vllm_list_the_voices(port):
    """As SGLang-Omni's benchmark checks the answer: names are strings or objects, and there is a second list."""
    data = listed(port)
    assert all(isinstance(voice, str) or voice.get("name") for voice in data["voices"])
    assert data["uploaded_voices"] == []


def test_our_own_client_finds_a_voice(port):
    for name in ("amber", "Oliver", "default"):
        RemoteEngine(ServerConfig(f"127.0.0.1:{port}", "", name)).connect()
    with pytest.raises(HiggsError, match=r"has no voice 'nobody'\. Choose one of: default, amber, clara"):
        RemoteEngine(ServerConfig(f"127.0.0.1:{port}", "", "nobody")).connect()


@pytest.mark.parametrize("name", sorted(STOCK_VOICES))
def test_a_file_of_a_stock_name_wins(name, tmp_path):
    folder = VoiceFolder(tmp_path)
    assert folder.file_of(name) is None and folder.file_of(name.upper()) is None
    shutil.copy(BUILT_IN_CLIPS / "ruth.flac", tmp_path / f"{name.title()}.flac")
    assert folder.file_of(name) == (tmp_path / f"{name.title()}.flac", None) and name in folder.names()
    with pytest.raises(BadCall, match="no voice 'nobody'"):
        folder.file_of("nobody")


def test_calls_speak_with_an_own_voice_of_a_stock_name(port, folder):
    body = {**SHORT, "voice": "nova", "response_format": "pcm"}
    models = ask(port, body=body)[2]
    shutil.copy(BUILT_IN_CLIPS / "ruth.flac", folder / "nova.flac")
    shutil.copy(BUILT_IN_CLIPS / "ruth.txt", folder / "nova.txt")
    try:
        own = ask(port, body=body)[2]
        assert own == ask(port, body={**body, "voice": "ruth"})[2] != models
        assert {"id": "nova", "name": "nova"} in listed(port)["voices"]
    finally:
        (folder / "nova.flac").unlink()
    assert ask(port, body=body)[2] == models


def aac(data):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(io.BytesIO(data)) as file:
        assert file.format.name == "aac" and file.streams.audio[0].rate == 24_000
        return np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])


@pytest.fixture
def speaking_port(folder):
    """The port of a server with real speech: AAC keeps little of the tiny checkpoint's noise."""
    with (
        Engine(EngineConfig(str(EMBEDDED), device="cpu", context=1024)) as engine,
        running(engine, folder) as (port, _),
    ):
        yield port


def test_aac_is_sent_whole_and_streamed(speaking_port):
    pytest.importorskip("av", reason="PyAV is not installed")
    port = speaking_port
    wav = np.frombuffer(ask(port, body={**SHORT, "response_format": "pcm"})[2], "<i2") / 32768
    call = {**SHORT, "response_format": "aac"}
    batch = json.loads(ask(port, "POST", "/v1/audio/speech/batch", {"response_format": "aac", "items": [SHORT]})[2])
    events = ask(port, body={**call, "stream_format": "sse"})[2].decode().split("\n\n")
    told = [json.loads(event.partition("data: ")[2]) for event in events if event]
    _, headers, streamed = ask(port, body=call)
    files = {
        "whole": ask(port, body={**call, "stream": False})[2],
        "streamed": streamed,
        "events": b"".join(base64.b64decode(one.get("audio", "")) for one in told),
        "batch": base64.b64decode(batch["results"][0]["audio_data"]),
    }
    assert batch["results"][0]["media_type"] == "audio/aac" and len(told) > 2
    assert headers["content-type"] == "audio/aac"
    for data in files.values():
        heard = aac(data)
        assert len(wav) <= len(heard) < len(wav) + 4096
        assert max(np.correlate(heard[at : len(wav) + at], wav)[0] for at in (0, 1024, 2048)) > 0.95 * (wav @ wav)


def test_without_pyav_aac_is_refused_in_a_sentence(port, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    answer = ask(port, body={**SHORT, "response_format": "aac"})
    assert answer[0] == 400 and error_of(answer) == {
        "message": "aac needs PyAV on the server (pip install av). Choose another response_format, such as mp3.",
        "type": "invalid_request_error", "param": "response_format", "code": None,
    }  # fmt: skip
    assert ask(port, body={**SHORT, "response_format": "mp3"})[0] == 200


CLIPS = {
    "nothing": b"\0" * 900, "text": b"This is not sound. " * 60, "empty": b"\0", "html": b"<html>" * 90,
    "half a WAV": b"RIFF\xff\xff\xff\xffWAVEfmt ", "OGG": b"OggS" + bytes(200), "FLAC": b"fLaC" + bytes(200),
    "MP4": b"\0\0\0\x18ftypM4A " + bytes(400), "WebM": b"\x1aE\xdf\xa3" + bytes(200), "AIFF": b"FORM\0\0\1\0AIFF",
}  # fmt: skip


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_that_is_no_sound_is_refused_without_an_address(port, name):
    answer = ask(port, body={**SHORT, "ref_audio": base64.b64encode(CLIPS[name]).decode(), "ref_text": "Hello."})
    told = error_of(answer)
    assert answer[0] == 400 and told["param"] == "ref_audio"
    assert told["message"].startswith("the clip cannot be read as audio (") and "0x" not in told["message"]
    assert "object" not in told["message"]


def reference(name, gain=1.0):
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    wav, rate = soundfile.read(BUILT_IN_CLIPS / f"{name}.flac", dtype="float32")
    made = io.BytesIO()
    soundfile.write(made, wav * gain, rate, format="FLAC")
    text = (BUILT_IN_CLIPS / f"{name}.txt").read_text(encoding="utf-8").strip()
    return {"data": base64.b64encode(made.getvalue()).decode(), "text": text}


def test_several_references_make_one_voice(port):
    one, other, loud = reference("amber"), reference("clara"), reference("oliver", 9)

    def spoken(*references):
        status, headers, sound = ask(port, body={**SHORT, "response_format": "wav", "references": references})
        assert status == 200
        return sound, headers.get("x-voice-warnings", "")

    alone, both = spoken(one), spoken(one, other)
    assert alone[0] != both[0] == spoken(one, other)[0] != spoken(other, one)[0]
    warned = spoken(one, loud, other)
    assert not both[1] and warned[1].startswith("Reference 2 was left out. The clip is overdriven")
    assert warned[0] == both[0]
    ref_audio = {**SHORT, "response_format": "wav", "ref_audio": one["data"], "ref_text": one["text"]}
    assert ask(port, body=ref_audio)[2] == alone[0]


@pytest.mark.parametrize("name", ["nothing", "half a WAV", "short"])
def test_a_reference_that_is_no_voice_is_named(port, name):
    data = base64.b64encode(CLIPS[name]).decode() if name in CLIPS else reference("amber", 0.0)["data"]
    told = error_of(ask(port, body={**SHORT, "references": [reference("amber"), {"data": data}]}))
    assert told["param"] == "references" and told["message"].startswith("Reference 2: ")


def test_a_call_with_a_loud_clip_is_warned(port):
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    wav, rate = soundfile.read(BUILT_IN_CLIPS / "amber.flac", dtype="float32")
    for gain, is_warned in ((1, False), (8, True)):
        made = io.BytesIO()
        soundfile.write(made, wav * gain, rate, format="WAV", subtype="FLOAT")
        clip = base64.b64encode(made.getvalue()).decode()
        for stream in (False, True):
            headers = ask(port, body={**SHORT, "ref_audio": clip, "ref_text": "Hello.", "stream": stream})[1]
            assert ("overdriven" in headers.get("x-voice-warnings", "")) == is_warned


def test_a_saved_voice_is_known_whatever_the_case_of_its_suffix(tmp_path):
    folder = VoiceFolder(tmp_path)
    Voice(torch.zeros((25, 8), dtype=torch.long), "Words.").save(tmp_path / "Anna.SAFETENSORS")
    path, voice = folder.file_of("anna")
    assert voice is not None and voice.transcript == "Words."
    folder.delete("anna")
    assert not path.exists()


def test_a_voice_that_another_program_holds_is_not_deleted_and_the_caller_told(tmp_path, monkeypatch):
    """Windows deletes no open file."""
    folder = VoiceFolder(tmp_path)
    folder.add("anna", Voice(torch.zeros((25, 8), dtype=torch.long), "Words."))

    def refuse(path):
        raise PermissionError(13, "file is open", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "unlink", refuse)
        with pytest.raises(
            HiggsError, match=r"anna\.safetensors could not be written: file is open\. .*close programs"
        ):
            folder.delete("anna")
    assert "anna" in folder.names()
