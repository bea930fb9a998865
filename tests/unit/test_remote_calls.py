"""Requests to servers, checked against the servers' published request models, and users' addresses.

SPEECH_WHEELS may name a folder with the wheels of sglang-omni and vllm-omni (`pip download --no-deps`): then their own
models read the calls. Without it the fields' names are compared with those in data/speech_requests.json.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import pathlib
import sys
import types

import pytest
import soundfile
import torch
from higgs_tts.engine import HiggsError, RemoteEngine, SamplingParams, ServerConfig
from higgs_tts.engine.audio.pcm import to_frames, to_wav
from higgs_tts.engine.engines.remote.address import read_addresses
from higgs_tts.engine.engines.remote.prompts import RemotePrompts, named_voice
from higgs_tts.engine.engines.remote.server import Kind, Server, foreign_seed
from higgs_tts.tests.published import published_wheel

KEY = "HIGGS_TTS_API_KEY"
PUBLISHED = json.loads((pathlib.Path(__file__).parent / "data" / "speech_requests.json").read_text(encoding="utf-8"))
KINDS = {"sglang-omni": Kind.SGLANG, "vllm-omni": Kind.VLLM, "boson": Kind.HOSTED}
(ADDRESS,) = read_addresses("127.0.0.1:8000", KEY)
PARAMS = SamplingParams(seed=(1 << 64) - 1, temperature=0.7, top_p=0.9, top_k=0, max_frames=300)


def a_voice(seconds=2.0):
    engine = RemoteEngine(ServerConfig("127.0.0.1:8000"))
    return engine.encode_voice(torch.rand(int(24_000 * seconds)) - 0.5, 24_000, "What it says.", "Anna")


def body(kind, voice=None, params=PARAMS, index=4, text="Hello there.", scene=None):
    said = RemotePrompts().build(text, voice, scene, params=params, index=index)
    return Server(ADDRESS, kind, "higgs").body(said)


VOICES = {"none": None, "clip": a_voice(), "named": named_voice("jake")}
every_voice = pytest.mark.parametrize("voice", VOICES)


def published_model(name, monkeypatch, folder):
    """Load the request model from its wheel, without the other imports of its package."""
    source = PUBLISHED[name]
    wheel = published_wheel(source["wheel"])
    pydantic = pytest.importorskip("pydantic")
    for package in ("sglang_omni", "sglang_omni.client", "sglang_omni.client.types"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    sys.modules["sglang_omni.client.types"].UsageInfo = type("UsageInfo", (pydantic.BaseModel,), {})
    path = folder / f"published_{name.partition('-')[0]}.py"
    path.write_bytes(wheel.read(source["file"]))
    assert path.read_text("utf-8").splitlines()[source["line"] - 1].startswith(f"class {source['model']}(")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return getattr(module, source["model"])


@pytest.mark.parametrize("name", ["sglang-omni", "vllm-omni"])
def test_the_fixture_lists_the_published_model_s_fields(name, monkeypatch, tmp_path):
    assert list(published_model(name, monkeypatch, tmp_path).model_fields) == PUBLISHED[name]["fields"]


@every_voice
@pytest.mark.parametrize("name", ["sglang-omni", "vllm-omni"])
def test_published_models_read_our_calls(name, voice, monkeypatch, tmp_path):
    sent = body(KINDS[name], VOICES[voice])
    read = published_model(name, monkeypatch, tmp_path)(**sent)
    for field in sent.keys() & set(PUBLISHED[name]["fields"]):
        assert getattr(read, field) == sent[field], field


@every_voice
@pytest.mark.parametrize("name", KINDS)
def test_fields_that_calls_rely_on_are_published(name, voice):
    """Other fields are dropped silently: top-level sampling by vLLM-Omni, extra_params by SGLang-Omni."""
    sent, fields = body(KINDS[name], VOICES[voice]), set(PUBLISHED[name]["fields"])
    relied = {"model", "input", "response_format"} | {"none": set(), "clip": {"ref_audio", "ref_text"}}.get(
        voice, {"voice"}
    )
    if name != "boson":
        relied |= {"max_new_tokens", "seed"}
    relied |= {"sglang-omni": {"temperature", "top_p", "top_k"}, "vllm-omni": {"extra_params"}}.get(name, set())
    assert relied <= fields and relied <= sent.keys()
    allowed = {"boson": set(), "sglang-omni": {"extra_params"}, "vllm-omni": {"temperature", "top_p", "top_k"}}[name]
    assert sent.keys() - fields == allowed and "speed" not in sent


def test_each_kind_of_server_gets_sampling_and_seeds():
    for kind in (Kind.SGLANG, Kind.VLLM, Kind.OTHER):
        sent = body(kind)
        sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": -1}
        assert sampling.items() <= sent.items() and sent["extra_params"] == sampling
        assert 0 <= sent["seed"] < 1 << 31 and "index" not in sent and "scene" not in sent
    ours = body(Kind.OURS, scene="A kitchen.")
    wanted = {"seed": (1 << 64) - 1, "index": 4, "top_k": 0, "retries": 0, "scene": "A kitchen.", "max_new_tokens": 300}
    wanted["stream"] = False  # its answer says how it ended
    assert wanted.items() <= ours.items() and "extra_params" not in ours
    assert foreign_seed(7, 0) == 7 and len({foreign_seed(7, index) for index in range(50)}) == 50


def test_a_clip_is_sent_as_wav_and_a_short_one_padded():
    head, _, data = body(Kind.SGLANG, VOICES["clip"])["ref_audio"].partition(",")
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="float32")
    assert head == "data:audio/wav;base64" and rate == 24_000 and len(samples) == 48_000
    assert (torch.from_numpy(samples) - VOICES["clip"].wav()).abs().max() < 1e-4
    short = a_voice().__class__(VOICES["clip"].codes[:5], None, "", VOICES["clip"].codec)
    sent = body(Kind.VLLM, short)
    assert soundfile.info(io.BytesIO(base64.b64decode(sent["ref_audio"].partition(",")[2]))).duration == 1.0
    assert "ref_text" not in sent


def test_the_hosted_api_refuses_long_text():
    with pytest.raises(
        HiggsError, match=r"accepts 5000 characters at a time, but a chunk has 6000\. Set chunk_seconds"
    ):
        body(Kind.HOSTED, text="a" * 6000)


def test_texts_are_cleaned_as_for_a_model_with_all_tags():
    made = RemotePrompts("vLLM-Omni at here").build(
        "<emotion:awe>Look <|audio|>at <|sfx:laugther|>that.", VOICES["clip"], "A kitchen.", params=PARAMS, index=0
    )
    assert made.content == "Look <|emotion:awe|>at that." and made.scene is None
    told = "\n".join(made.warnings)
    assert "Did you mean <|sfx:laughter|>?" in told and "vLLM-Omni at here does not use scene descriptions" in told
    for empty in ("", " ... ", "<|prosody:pause|>"):
        with pytest.raises(HiggsError, match="nothing to speak"):
            RemotePrompts().build(empty, None, None, params=PARAMS, index=0)


def test_kept_codes_are_keyed_by_text_voice_and_settings():
    from higgs_tts.engine.speech.kept_codes import key_of

    def key(text="Hello.", voice=None, scene=None, **params):
        return key_of(RemotePrompts().build(text, voice, scene, params=SamplingParams(**params), index=0))

    other = a_voice()
    keys = [key(), key("Bye."), key(voice=other), key(voice=named_voice("a")), key(voice=named_voice("b")), key(seed=1)]
    assert len(set(keys)) == 6 and key(scene="A kitchen.") != key() and key(voice=other) == keys[2]


class TestAddresses:
    @pytest.mark.parametrize(
        ("written", "label", "path", "secure"),
        [
            ("127.0.0.1:8000", "127.0.0.1:8000", "", False),
            (" http://box:8000/v1/ ", "box:8000", "", False),
            ("https://api.boson.ai", "api.boson.ai", "", True),
            ("http://api.boson.ai/v1/audio/speech", "api.boson.ai", "", True),  # never without TLS
            ("https://example.org/higgs/v1", "example.org/higgs", "/higgs", True),
            ("[::1]:9000", "[::1]:9000", "", False),
            ("box", "box", "", False),
        ],
    )
    def test_addresses_are_read_as_users_write_them(self, written, label, path, secure):
        (address,) = read_addresses(written, KEY)
        assert (address.label, address.path, address.secure) == (label, path, secure)

    def test_several_addresses_have_separate_keys(self, monkeypatch):
        monkeypatch.setenv("HIGGS_TTS_BOSON_KEY", " bai-1 \n")
        first, second = read_addresses("box:8000, box:8000\nhttps://api.boson.ai HIGGS_TTS_BOSON_KEY\n", KEY)
        assert (first.host, first.variable, first.key) == ("box", KEY, os.environ.get(KEY, ""))
        assert (second.variable, second.key, second.is_hosted) == ("HIGGS_TTS_BOSON_KEY", "bai-1", True)

    @pytest.mark.parametrize(
        "written",
        [
            "",
            " \n,",
            "ftp://box",
            "http://",
            "box:99999",
            "box:x",
            "http://box?key=1",
            "http://[::1",
            "a b c",
            "http://b\u00e4\u200bx..y",
        ],
    )
    def test_malformed_addresses_are_refused(self, written):
        with pytest.raises(HiggsError):
            read_addresses(written, KEY)

    @pytest.mark.parametrize(
        ("written", "variable", "says"),
        [
            ("127.0.0.1 8000", KEY, "An address contains no spaces"),
            ("http://box: 8000", KEY, "An address contains no spaces"),
            ("no address at all", KEY, "An address contains no spaces"),
            ("http//127.0.0.1:8000", KEY, "is not the address of a server"),
            ("http:/127.0.0.1:8000", KEY, "is not the address of a server"),
            ("127.0.0.1;8000", KEY, "is not the address of a server"),
            ("box:eight", "wrong too", "is not the address of a server"),
        ],
    )
    def test_a_mistyped_address_is_not_reported_as_a_key_problem(self, written, variable, says):
        with pytest.raises(HiggsError, match=says) as refused:
            read_addresses(written, variable)
        assert len(str(refused.value)) < 150 and "another program's key" not in str(refused.value)

    def test_secrets_in_a_workflow_are_refused_and_not_repeated(self):
        for line, variable in [
            ("box bai-secret", KEY),
            ("box", "bai-secret"),
            ("box", "AWS_SECRET"),
            ("u:secret@box", KEY),
        ]:
            with pytest.raises(HiggsError, match="environment variable") as refused:
                read_addresses(line, variable)
            assert "secret" not in str(refused.value).lower()

    def test_a_key_that_no_header_can_hold_is_refused(self, monkeypatch):
        monkeypatch.setenv(KEY, "two\nlines")
        with pytest.raises(HiggsError, match="invalid characters"):
            assert ADDRESS.key


def test_sound_is_packed_as_frames_and_back():
    wav = (torch.rand(2000) - 0.5) * 2
    frames = to_frames(wav)
    assert frames.shape == (3, 960) and frames.dtype == torch.int16
    assert (to_wav(frames)[:2000] - wav).abs().max() < 2e-5 and not to_wav(frames)[2000:].any()
    assert to_wav(to_frames(torch.tensor([2.0, -2.0])))[:2].tolist() == [1.0, -1.0]


def test_a_voice_for_servers_keeps_its_sound_in_its_file(tmp_path):
    from higgs_tts.engine import Voice, read_voice_head

    made = VOICES["clip"]
    again = Voice.load(made.save(tmp_path / "anna.safetensors"))
    assert (
        again.is_sound and again.wav().equal(made.wav()) and (again.transcript, again.name) == ("What it says.", "Anna")
    )
    assert read_voice_head(tmp_path / "anna.safetensors").seconds == made.seconds == 2.0
