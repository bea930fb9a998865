"""The page's list of voices, and their playback."""

from __future__ import annotations

import io

import pytest
import torch
from higgs_tts.engine import EMBEDDED, EMBEDDED_NAME, Voice, codec_of
from higgs_tts.engine.tools.tiny import write_tiny
from safetensors.torch import save_file

soundfile = pytest.importorskip("soundfile")
CODES = torch.randint(0, 1024, (50, 8), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def ask(server_routes):
    return server_routes


@pytest.fixture
def library(tmp_path):
    """models/voices with clips good and bad, saved voices of two codecs, a LoRA and a broken file."""
    root = tmp_path / "models" / "voices"
    (root / "team").mkdir(parents=True)
    for name, seconds in (("anna", 8), ("team/long", 40)):
        soundfile.write(root / f"{name}.wav", torch.zeros(8000 * seconds).numpy(), 8000)
    (root / "anna.txt").write_text("One. " * 40)
    (root / "noise.wav").write_text("no sound")
    Voice(CODES, "Two.", "bob", codec_of(EMBEDDED)).save(root / "bob.safetensors")
    write_tiny(tmp_path / "models" / "higgs_tts" / "tiny", "v3")
    Voice(CODES, None, "cleo", codec_of(tmp_path / "models" / "higgs_tts" / "tiny")).save(root / "cleo.safetensors")
    Voice(CODES, None, "dora", "1+1").save(root / "dora.safetensors")
    save_file({"lora_down": torch.zeros(2)}, root / "lora.safetensors")
    (root / "broken.safetensors").write_bytes(b"\0" * 40)
    return root


def test_the_list_describes_voices_and_says_why_one_does_not_fit(ask, library):
    told = {voice["name"]: voice for voice in ask("voices", model=EMBEDDED_NAME).data}
    assert [name for name in told if not name.startswith("built-in/")] == [
        "anna.wav", "bob.safetensors", "cleo.safetensors", "dora.safetensors", "noise.wav", "team/long.wav",
    ]  # fmt: skip
    anna = told["anna.wav"]
    assert anna["seconds"] == 8 and anna["problem"] == "" and anna["transcript"].startswith("One. One.")
    assert len(anna["transcript"]) <= 83 and anna["transcript"].endswith("...")
    assert told["bob.safetensors"] == {"name": "bob.safetensors", "seconds": 2, "transcript": "Two.", "problem": ""}
    assert "different model" in told["cleo.safetensors"]["problem"]
    assert "1 to 30 seconds" in told["team/long.wav"]["problem"] and "cannot be read" in told["noise.wav"]["problem"]
    assert all(voice["problem"] == "" for name, voice in told.items() if name.startswith("built-in/"))
    others = {voice["name"]: voice["problem"] for voice in ask("voices", model="tiny").data}
    assert others["cleo.safetensors"] == "" and "different model" in others["bob.safetensors"]
    unknown = {voice["name"]: voice["problem"] for voice in ask("voices", model="download: x").data}
    assert unknown["bob.safetensors"] == "" and unknown["cleo.safetensors"] == "", "nothing is known of that model yet"


def test_one_broken_text_file_takes_no_other_voice_from_the_list(ask, library):
    with (library / "anna.txt").open("wb") as file:
        file.truncate(1 << 30)
    told = {voice["name"]: voice for voice in ask("voices", model=EMBEDDED_NAME).data}
    assert "anna.txt cannot be read" in told["anna.wav"]["problem"] and told["anna.wav"]["transcript"] == ""
    assert told["bob.safetensors"]["problem"] == "" and len(told) > 10


def test_only_files_are_played_and_only_small_ones(ask, library, make_pipe):
    make_pipe(library / "pipe.wav")
    with (library / "film.wav").open("wb") as file:
        file.truncate(3_000_000_000)  # sparse
    pipe, film = ask("voice", name="pipe.wav"), ask("voice", name="film.wav")
    assert pipe.status == film.status == 404
    assert "at most 67 MB" in film.data["error"] and film.data["error"].startswith("film.wav cannot be played")
    names = {voice["name"]: voice["problem"] for voice in ask("voices", model=EMBEDDED_NAME).data}
    assert names["film.wav"] and names["anna.wav"] == ""


def test_a_file_is_read_again_only_after_a_change(ask, library, load_module, monkeypatch):
    module, opened = load_module("page.voice_sounds"), []
    for name in ("clip_seconds", "read_voice_head"):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda path, real=real: opened.append(path.name) or real(path))
    ask("voices", model=EMBEDDED_NAME)
    assert {"anna.wav", "noise.wav", "bob.safetensors"} < set(opened)
    opened.clear()
    soundfile.write(library / "anna.wav", torch.zeros(8000 * 9).numpy(), 8000)
    (library / "anna.txt").write_text("Two.")
    told = {voice["name"]: voice for voice in ask("voices", model="tiny").data}
    assert opened == ["anna.wav"] and (told["anna.wav"]["seconds"], told["anna.wav"]["transcript"]) == (9, "Two.")
    assert "cannot be read" in told["noise.wav"]["problem"]


def test_clips_are_played_unchanged_and_saved_voices_decoded(ask, library):
    assert ask("voice", name="anna.wav").data == (library / "anna.wav").read_bytes()
    heard, rate = soundfile.read(io.BytesIO(ask("voice", name="bob.safetensors").data))
    assert rate == 24_000 and len(heard) == 48_000 and abs(heard).max() > 0.01
    assert ask("voice", name="built-in/" + ask("voices").data[-1]["name"].split("/")[1]).status == 200


def test_clips_that_not_every_browser_plays_are_sent_as_wav(ask, library):
    wav = torch.stack([torch.linspace(-0.5, 0.5, 16_000), torch.zeros(16_000)], 1).numpy()
    soundfile.write(library / "anna.aiff", wav, 8000, format="AIFF", subtype="FLOAT")
    heard, rate = soundfile.read(io.BytesIO(ask("voice", name="anna.aiff").data))
    assert rate == 24_000 and len(heard) == 48_000 and abs(heard[::3] - wav.mean(1))[99:-99].max() < 1e-3
    (library / "text.m4a").write_text("no sound")
    answer = ask("voice", name="text.m4a")
    assert answer.status == 404 and "text.m4a cannot be read as audio" in answer.data["error"]


@pytest.mark.parametrize(
    "name, status, told",
    [
        ("", 400, "name of a voice"),
        ("nobody.wav", 404, "there is no voice"),
        ("../../secret.wav", 404, "there is no voice"),
        ("lora.safetensors", 404, "there is no voice"),
        ("dora.safetensors", 404, "a model that is not on this machine"),
    ],
)
def test_a_voice_that_cannot_be_played_gets_a_clear_error(ask, library, name, status, told):
    answer = ask("voice", name=name)
    assert answer.status == status and told in answer.data["error"]
