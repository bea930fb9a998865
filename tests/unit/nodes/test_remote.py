"""Higgs TTS Server: checks before a run, and that every node speaks through it and loads nothing."""

from __future__ import annotations

import pytest
import torch
from higgs_tts.engine import HiggsError, Voice
from higgs_tts.tests.speech_servers import Fake, Reply, refusal

CLIP = {"waveform": torch.rand(1, 1, 48_000) - 0.5, "sample_rate": 24_000}
SPEECH = "One sentence is all that there is."


@pytest.fixture
def fake():
    with Fake() as fake:
        yield fake


@pytest.fixture
def node(load_module):
    return load_module("remote").HiggsTTSServer


@pytest.fixture
def model(node, fake, comfy):
    yield node.execute(fake.address).args[0]
    mm = comfy["comfy.model_management"]
    assert mm.loads == [] and mm.freed == [], "something was loaded, or unloaded for it"


def test_info_names_the_servers_and_their_limits(node, fake):
    with Fake("plain", model="other") as unknown:
        model, info = node.execute(f"{fake.address}\n{unknown.address}\n127.0.0.1:1").args
        assert info.splitlines()[:2] == [
            f"SGLang-Omni at {fake.address}: higgs",
            f"unknown server at {unknown.address}: other",
        ]
        for told in ("127.0.0.1:1 refused the connection", "may ignore seed", "different models (higgs, other)"):
            assert f"{told}" in info and info.count("Warning: ") == 3
    assert not fake.calls and model.others == () and model.model.label.startswith("higgs, other on SGLang-Omni")


def test_an_unreachable_server_is_an_error_on_the_node(node):
    with pytest.raises(HiggsError, match=r"^Higgs TTS Server: The server cannot be used: 127\.0\.0\.1:1 refused"):
        node.execute("127.0.0.1:1")


def test_a_bad_address_is_refused_before_the_run(node):
    check = node.validate_inputs
    assert check(None) is True and check("box:8000") is True and check("box HIGGS_TTS_KEY") is True
    assert "is not the address of a server" in check("ftp://box")
    assert "environment variable" in check("box bai-secret") and "secret" not in check("box bai-secret")
    with pytest.raises(HiggsError, match="environment variable") as refused:
        node.execute("box", key_variable="bai-secret")
    assert "secret" not in str(refused.value)


def test_stop_ends_the_search(node, comfy, interrupted):
    with Fake(**{"/health": Reply(hangs=True)}) as silent:
        comfy["comfy.model_management"].stop = True
        with pytest.raises(interrupted):
            node.execute(silent.address)


def test_a_voice_from_a_clip_is_sent_as_sound(load_module, model, fake):
    voice, told = load_module("voice").HiggsTTSVoice.execute(model, CLIP, "What it says.").args
    assert voice.is_sound and told.startswith("2.0 s, 'What it says.'")
    audio, info, srt, _, said = load_module("speak").HiggsTTSSpeak.execute(model, SPEECH, voice=voice, seed=5).args
    assert said == SPEECH
    (call,) = fake.calls
    assert (call["input"], call["seed"], call["ref_text"]) == (SPEECH, 5, "What it says.")
    assert audio["sample_rate"] == 24_000 and audio["waveform"].abs().max() > 0.2 and SPEECH in srt
    lines = info.splitlines()
    assert "not checked." in lines[0] and f"Model: higgs on SGLang-Omni at {fake.address}" in lines
    assert f"Backend: SGLang-Omni at {fake.address} (1 chunk). " in lines[-1]


def test_built_in_clips_are_sent_and_voices_without_sound_refused(load_module, model, library):
    read = load_module("voice_files")
    loaded, _ = read.HiggsTTSLoadVoice.execute("built-in/amber.flac", model).args
    assert loaded.is_sound and loaded.transcript
    with pytest.raises(HiggsError, match="was made for a model on this machine, but a server needs the clip itself"):
        load_module("speak").HiggsTTSSpeak.execute(model, SPEECH, voice=read.load(library / "d.safetensors", None))


def test_a_saved_voice_keeps_its_sound_and_needs_no_model(load_module, model, library):
    voice, _ = load_module("voice").HiggsTTSVoice.execute(model, CLIP).args
    load_module("voice_files").HiggsTTSSaveVoice.execute(voice, "of a server")
    again = Voice.load(library / "of a server.safetensors")
    assert again.wav().equal(voice.wav())
    sound, kind = load_module("page.voice_sounds").sound_of("of a server.safetensors")
    assert kind == "audio/wav" and len(sound) == 44 + 2 * 48_000
    (told,) = [one for one in load_module("page.voice_sounds").listed("") if one["name"] == "of a server.safetensors"]
    assert told["seconds"] == 2.0 and "works only with Higgs TTS Server" in told["problem"]
    elsewhere = load_module("page.voice_sounds").listed("(on a server)")  # as web/js/graph.js says of a server
    saved = [one for one in elsewhere if one["name"] in ("of a server.safetensors", "d.safetensors")]
    assert [one["problem"] for one in saved] == ["", ""]


def test_a_dialogue_is_spoken_by_a_server(load_module, model, fake):
    voice, _ = load_module("voice").HiggsTTSVoice.execute(model, CLIP, "What it says.").args
    script = "Anna: Did you hear that?\nTom: What should I have heard?\nAnna: There it is.\nTom: I hear nothing at all."
    node = load_module("dialogue").HiggsTTSDialogue
    _, speakers, info, *_ = node.execute(model, script, voices={"voice_1": voice}).args
    assert speakers["waveform"].shape[0] == 2 and "Speakers: 1 Anna, 2 Tom" in info
    cloned = {call["input"] for call in fake.calls if call.get("ref_text") == "What it says."}
    assert cloned == {"Did you hear that?", "There it is."} and len(fake.calls) == 4


def test_lines_are_spoken_by_a_server(load_module, model, fake, tmp_path):
    node = load_module("lines").HiggsTTSLines
    sheet = "id,speaker,text\nhello,Anna,Hello there.\nbye,Anna,Good bye for now."

    def run(lines):
        return node.execute(lines=[lines], model=[model]).args[1]

    assert "2 spoken" in run(sheet) and (tmp_path / "output" / "lines" / "bye.wav").is_file()
    count = len(fake.calls)
    assert "2 unchanged" in run(sheet) and len(fake.calls) == count


def test_subtitles_are_spoken_by_a_server_in_a_film_s_voices(load_module, model, fake):
    srt = "1\n00:00:00,000 --> 00:00:02,000\nDid you hear that thing?\n"
    film = torch.rand(1, 1, 72_000) - 0.5
    film[..., 46_000:] = 0
    film[..., 20_000:24_000] = 0.0001
    given = {"waveform": film, "sample_rate": 24_000}
    audio, info, *_ = load_module("subtitles").HiggsTTSSubtitles.execute(model, srt, film=given).args
    assert "Voice of (no name)" in info and "ref_audio" in fake.calls[0] and audio["waveform"].shape[-1] >= 72_000


def test_a_book_is_spoken_by_a_server(load_module, model, fake, tmp_path):
    node = load_module("book").HiggsTTSBook
    text = "# One\n\nFirst of all there is this.\n\n# Two\n\nAnd then there is that."
    report, _ = node.execute(model, text=text).args
    assert "01 One.flac" in report and f"Model: higgs on SGLang-Omni at {fake.address}" in report
    count = len(fake.calls)
    assert "unchanged" in node.execute(model, text=text).args[0] and len(fake.calls) == count


def test_a_lora_on_a_server_is_refused(load_module, model):
    node = load_module("lora").HiggsTTSLoadLoRA
    assert node.execute(model, "any", 0.0).args == (model,)
    with pytest.raises(
        HiggsError, match=r"^Higgs Load LoRA: a LoRA cannot be added here because the model runs on a server"
    ):
        node.execute(model, "any", 1.0)


def test_stop_ends_the_speech_and_its_calls(load_module, model, fake, comfy, interrupted):
    def hang(number, body):
        comfy["comfy.model_management"].stop = True
        return Reply(hangs=True)

    fake.reply = hang
    with pytest.raises(interrupted):
        load_module("speak").HiggsTTSSpeak.execute(model, SPEECH)
    assert fake.left.acquire(timeout=30)


def test_an_error_names_the_node_the_server_and_the_remedy(load_module, model, fake):
    fake.reply = lambda number, body: refusal(401, "No.")
    with pytest.raises(
        HiggsError, match=r"^Higgs Speak: SGLang-Omni at .* refused the key: No\. Put the correct key into"
    ):
        load_module("speak").HiggsTTSSpeak.execute(model, SPEECH)


class TestKeys:
    """A stranger's workflow may name any server, and variables are easily guessed."""

    @pytest.fixture
    def servers(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HIGGS_TTS_API_KEY", "first")
        monkeypatch.setenv("HIGGS_TTS_OTHER", "second")
        (tmp_path / "user" / "higgs_tts").mkdir(parents=True)
        return tmp_path / "user" / "higgs_tts" / "servers.txt"

    def test_a_key_goes_only_to_servers_that_the_user_has_listed(self, node, fake, servers):
        with pytest.raises(HiggsError, match=r"^Higgs TTS Server: the key in HIGGS_TTS_API_KEY") as refused:
            node.execute(fake.address)
        assert not fake.keys and f"http://{fake.address} HIGGS_TTS_API_KEY to {servers}" in str(refused.value)
        servers.write_text(f"# mine\nhttps://{fake.address}\nhttp://{fake.address}/path\n", encoding="utf-8")
        with pytest.raises(HiggsError, match="not confirmed"):
            node.execute(fake.address)
        servers.write_text(f"\n http://{fake.address}/v1 \n", encoding="utf-8")
        node.execute(fake.address)
        assert fake.keys == {"Bearer first"}

    def test_each_server_gets_the_key_listed_for_it(self, node, fake, servers):
        servers.write_text(fake.address, encoding="utf-8")
        for given in ((f"{fake.address} HIGGS_TTS_OTHER",), (fake.address, "", "", "HIGGS_TTS_OTHER")):
            with pytest.raises(HiggsError, match="the key in HIGGS_TTS_OTHER was not sent to"):
                node.execute(*given)
        servers.write_text(f"{fake.address} HIGGS_TTS_OTHER", encoding="utf-8")
        node.execute(f"{fake.address} HIGGS_TTS_OTHER")
        assert fake.keys == {"Bearer second"}

    def test_servers_without_a_key_need_not_be_listed(self, node, fake, servers, monkeypatch):
        monkeypatch.delenv("HIGGS_TTS_API_KEY")
        node.execute(fake.address)
        assert fake.keys == {None}

    def test_an_unreadable_server_list_is_an_error(self, node, fake, servers):
        servers.write_text("ftp://box", encoding="utf-8")
        with pytest.raises(HiggsError, match=r"servers\.txt cannot be read: 'ftp://box' is not the address"):
            node.execute(fake.address)
